"""Rounds of one step: averaged differences are averaged gradients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.harness import run_threads, settings
from support.networks import SMALL, SMALL_MB
from support.selection import slow_but

from atomo.fusion import named_slices
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.job import make_job
from atomo.training.job.round_plan import Round, RoundPlan
from atomo.training.loop.local_steps import LocalSteps


def trained(folder: Path, **changes: object) -> dict[str, torch.Tensor]:
    """Returns the weights after a run of two workers with inner SGD."""
    short = {"code": "sgd", "network": SMALL, "fusion_mb": SMALL_MB, "outer": "sgd(lr=1)"}
    chosen = settings(folder, **(short | changes))
    run_threads(chosen)
    return dict(load(folder, chosen.max_steps).model)


def spacing(*tensors: torch.Tensor) -> torch.Tensor:
    """Returns the distance from the largest of some float32 numbers to the next number."""
    size = torch.stack([tensor.abs() for tensor in tensors]).amax(0)
    return torch.nextafter(size, torch.tensor(float("inf"))) - size


CASES = [
    {"n": 2, "comm_type": "Allgather"},
    {"n": 3, "comm_type": "ParameterServer"},
    {"n": 2, "comm_type": "Allreduce", "momentum": 0.0},
    {"n": 3, "comm_type": "ParameterServer", "down": "weights", "momentum": 0.0},
]


@pytest.mark.parametrize("steps", slow_but([4], [1, 4]))
@pytest.mark.parametrize("case", slow_but(CASES[1:2], CASES), ids=str)
def test_rounds_of_one_step_are_data_parallel_sgd_within_two_ulp(
    case, steps, tmp_path, monkeypatch
):
    common: dict[str, Any] = {"max_steps": steps, **case}
    plain = trained(tmp_path / "plain", **common, outer="auto")
    in_order = RoundPlan._round

    def local(plan: RoundPlan, *arguments: Any) -> Round:
        return replace(in_order(plan, *arguments), is_local=True)

    own: list[torch.Tensor] = []  # the weights of workers before they are averaged
    step_alone = LocalSteps.step

    def noted(steps: LocalSteps, *arguments: Any) -> None:
        step_alone(steps, *arguments)
        own.append(steps._optimizer.weights.clone())

    monkeypatch.setattr(RoundPlan, "_round", local)
    monkeypatch.setattr(LocalSteps, "step", noted)
    rounds = trained(tmp_path / "rounds", **common, local_steps="0: 1; 1000: 2")
    torch.manual_seed(0)
    job = make_job(settings(tmp_path, network=SMALL, n=2, comm_type="Allgather"), 2)
    alone = [dict(named_slices(weights, job.buckets)) for weights in own]
    assert len(alone) == 2 * steps
    for name, first in job.model.named_parameters():
        ulp = spacing(first.detach(), plain[name], rounds[name], *(each[name] for each in alone))
        # A gradient amplifies the rounding of earlier steps a little.
        assert bool(((plain[name] - rounds[name]).abs() <= 2 * steps * ulp).all()), name
    assert any(not plain[name].equal(rounds[name]) for name in plain)  # by another way
