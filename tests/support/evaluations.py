"""A network and a data set for fast tests of the evaluator, with their checkpoints and results."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import BatchNorm1d, Flatten, Linear, Module, Sequential

from atomo.training.checkpoints.checkpoint import Snapshot, save
from atomo.training.evaluation.evaluator import Evaluation, EvaluatorSettings, Missed, evaluate
from atomo.workloads import images
from atomo.workloads.datasets import Dataset, Split

__all__ = [
    "CLASSES", "IMAGES", "Noise", "Scripted", "checkpoint", "linear", "log", "nothing", "order",
    "real", "reported", "settings", "small", "weights",
]  # fmt: skip

IMAGES, CLASSES = 23, 7


class Noise(Split):
    """Images of four random pixels, with random labels."""

    def __init__(self, classes: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.images = torch.randn(IMAGES, 1, 2, 2, generator=generator)
        self.labels = torch.randint(classes, (IMAGES,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, seed: int | None = None) -> tuple[Tensor, Tensor]:
        assert seed is None
        return self.images[indices], self.labels[indices]


def linear(name: str, input_shape: tuple[int, int, int], classes: int) -> Module:
    assert name in ("Plain", "plain", "Normed")
    layers = [Flatten(), Linear(4, classes)]
    return Sequential(*layers, BatchNorm1d(classes)) if name == "Normed" else Sequential(*layers)


@pytest.fixture(autouse=True)
def small(monkeypatch, request):
    """Unless a test asks for the real ones: a network and a data set that take no time."""
    if "real" in request.fixturenames:
        return

    def data(name: str, data_dir: Path, image_size: int | None = None) -> Dataset:
        classes = {"Noise": CLASSES, "Three": 3}[name]
        return Dataset(name, classes, (1, 2, 2), Noise(classes), Noise(classes))

    monkeypatch.setattr(images, "load_dataset", data)
    monkeypatch.setattr(images, "build_model", linear)


@pytest.fixture
def real():
    return None


def weights(step: int, classes: int = CLASSES) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "1.weight": torch.randn(classes, 4, generator=generator),
        "1.bias": torch.randn(classes, generator=generator),
    }


def checkpoint(folder: Path, step: int, keep: int = 0, **config: str | int) -> None:
    config = {"network": "Plain", "dataset": "Noise", "image_size": 0} | config
    save(folder, Snapshot(step, weights(step), {}, ({"r": torch.ones(3)},), config), keep)


def settings(folder: Path, **changes: object) -> EvaluatorSettings:
    return replace(EvaluatorSettings(folder, None, None, folder), **changes)


class Scripted:
    """Instead of sleeping, does the next thing; more waits than things to do are an error."""

    def __init__(self, *things: Callable[[], object]) -> None:
        self.things = list(things)
        self.waited_s = 0.0

    def __call__(self, seconds: float) -> None:
        assert self.things, "waits for ever"
        self.waited_s += seconds
        self.things.pop(0)()


def nothing() -> None:
    pass


def reported(
    options: EvaluatorSettings, *actions: Callable[[], object]
) -> list[Evaluation | Missed]:
    results: list[Evaluation | Missed] = []
    script = Scripted(*actions)

    def report(result: Evaluation | Missed) -> None:
        results.append(result)
        assert len(results) < 10, "goes on for ever"

    count = evaluate(options, report, wait=script)
    assert not script.things, "ends too early"
    assert count == sum(isinstance(result, Evaluation) for result in results)
    return results


def order(results: list[Evaluation | Missed]) -> list[int]:
    return [r.step if isinstance(r, Evaluation) else -r.step for r in results]


def log(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
