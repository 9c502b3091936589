"""The evaluator on a GPU, if there is one, also when workers need its memory."""

from dataclasses import replace
from pathlib import Path
from typing import final

import pytest
import torch
from support.harness import settings
from torch import Tensor, nn

from atomo.cli.evaluate import device_of
from atomo.launch.jobs.mpirun import evaluator_command
from atomo.training.evaluation import scoring
from atomo.training.evaluation.scoring import Subject, build_subject
from atomo.workloads import make_task


@final
class Narrow(nn.Module):
    """A network on a device without memory for more than a number of samples."""

    def __init__(self, inside: nn.Module, room: int) -> None:
        super().__init__()
        self.inside, self.room, self.sizes = inside, room, list[int]()

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.sizes.append(len(images))
        outputs: Tensor = self.inside(images)
        return outputs


def subject() -> Subject:
    task = make_task("images")
    return build_subject(task, "LeNet", "Digits", None, Path("data"), "cpu")


@pytest.mark.slow
def test_batches_that_do_not_fit_are_halved():
    whole = subject()
    narrow = Narrow(whole.network, 50)
    weights = {f"inside.{name}": tensor for name, tensor in whole.network.state_dict().items()}
    values = scoring.tested(1, weights, replace(whole, network=narrow), 128)
    expected = scoring.tested(1, whole.network.state_dict(), whole, 128)
    assert values == pytest.approx(expected)
    assert set(narrow.sizes[:-1]) == {32}
    assert sum(narrow.sizes) == 360


def test_what_has_no_room_for_one_sample_is_an_error():
    whole = subject()
    weights = {f"inside.{name}": tensor for name, tensor in whole.network.state_dict().items()}
    with pytest.raises(torch.OutOfMemoryError):
        scoring.tested(1, weights, replace(whole, network=Narrow(whole.network, 0)), 128)


@pytest.mark.parametrize("there", [True, False])
def test_auto_is_a_gpu_where_there_is_one(monkeypatch, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert device_of("Auto") == ("cuda" if there else "cpu")
    assert device_of("yes") == "cuda"
    assert device_of("") == "cpu"


def test_beside_a_run_on_gpus_it_looks_for_one(tmp_path):
    assert "--enable-gpu=auto" in evaluator_command(settings(tmp_path, enable_gpu="yes"))
    assert not any(
        word.startswith("--enable-gpu") for word in evaluator_command(settings(tmp_path))
    )
