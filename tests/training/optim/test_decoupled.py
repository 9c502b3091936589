"""AdamW and Muon: runs equal loops with PyTorch's own optimizers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.harness import plain_sgd, run_threads, settings
from support.networks import SMALL
from torch import nn

from atomo.config.settings import Settings
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.job import make_job


def adamw_of(chosen: Settings) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.AdamW(
        model.parameters(), lr=chosen.lr, weight_decay=chosen.weight_decay
    )


def muon_of(chosen: Settings) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: MuonAndAdamW(model, chosen.lr, chosen.weight_decay)


class MuonAndAdamW(torch.optim.Optimizer):
    """PyTorch's Muon for the inner matrices, and its AdamW for the rest."""

    def __init__(self, model: nn.Module, lr: float, decay: float) -> None:
        self.parts: list[torch.optim.Optimizer] = []
        inner = [p for p in model.parameters() if p.dim() > 1][:-1]
        rest = [p for p in model.parameters() if not any(p is own for own in inner)]
        shared = {"lr": lr, "weight_decay": decay}
        self.parts = [
            torch.optim.Muon(inner, **shared, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, **shared),
        ]

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for part in self.parts for group in part.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


@pytest.mark.slow(cases=("muon",))
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_optimizers_with_decoupled_decay_have_the_bits_of_pytorch(name, tmp_path):
    chosen = settings(
        tmp_path, n=1, comm_type="Allgather", code="sgd", optimizer=name, network=SMALL,
        weight_decay=0.1, max_steps=5, batch_size=12,
    )  # fmt: skip
    run_threads(chosen)
    trained = load(tmp_path, 5).model
    make = adamw_of(chosen) if name == "adamw" else muon_of(chosen)
    expected = plain_sgd(chosen, make=make)
    assert all(trained[key].equal(expected[key]) for key in expected)


def test_muon_leaves_embeddings_and_the_last_layer_to_adamw(tmp_path):
    job = make_job(settings(tmp_path, n=2, network=SMALL, optimizer="muon"), 2)
    assert dict(job.matrices) == {"fc1.weight": 24, "fc2.weight": 400}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_resumed_run_has_the_moments_of_its_optimizer(name, tmp_path):
    common = {"n": 2, "comm_type": "Allgather", "code": "sgd", "optimizer": name, "network": SMALL}
    whole = settings(tmp_path / "whole", max_steps=6, **common)
    run_threads(whole)
    for steps in (3, 6):
        run_threads(settings(tmp_path / "parts", max_steps=steps, **common))
    first, second = (load(tmp_path / folder, 6) for folder in ("whole", "parts"))
    assert all(first.model[key].equal(second.model[key]) for key in first.model)
    assert first.optimizer.keys() == second.optimizer.keys()
