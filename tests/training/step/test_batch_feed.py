"""Batches for a device: made ahead on the host, or there."""

from collections.abc import Iterator
from threading import current_thread
from typing import final

import pytest
import torch
from support.fake_device import DEVICE, Device, is_on_device, use_staging, waits
from torch import Tensor

from atomo.training.step.batch_feed import Feed, Order
from atomo.workloads import Batch, Samples
from atomo.workloads.datasets.arrays import ArraySplit, CropFlip, Normalisation, in_memory
from atomo.workloads.images import ImageSamples


@final
class Numbers(Samples):
    """Each sample is its own number; made in a thread whose name is kept."""

    def __init__(self) -> None:
        self.made: list[tuple[str, list[int]]] = []

    def __len__(self) -> int:
        return 100

    def batch(self, indices: Tensor, seed: int | None = None) -> Batch:
        self.made.append((current_thread().name, indices.tolist()))
        return Batch((indices.float() + (seed or 0) / 8,), indices)


def order(*numbers: int, seed: int = 1) -> Order:
    return torch.tensor(numbers), seed


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    use_staging(monkeypatch)
    with Device():
        yield DEVICE


def test_on_the_cpu_each_is_made_where_it_is_asked_for():
    samples = Numbers()
    feed = Feed(samples, torch.device("cpu"))
    feed.batch(order(1, 2), lambda: order(3, 4))
    assert samples.made == [("MainThread", [1, 2])]
    feed.close()


def test_the_next_one_is_made_ahead_in_a_thread_and_goes_there_without_a_wait(device):
    samples = Numbers()
    feed = Feed(samples, device)
    with waits() as calls:
        first = feed.batch(order(1, 2), lambda: order(3, 4))
        second = feed.batch(order(3, 4), lambda: None)
    feed.close()
    assert calls == []
    assert is_on_device(first.inputs[0])
    assert first.inputs[0].held.tolist() == [1.125, 2.125]
    assert second.targets.held.tolist() == [3, 4]
    assert [made for _, made in samples.made] == [[1, 2], [3, 4]]
    assert all(name.startswith("feed") for name, _ in samples.made)


@pytest.mark.parametrize("asked", [order(3, 5), order(3, 4, seed=2)], ids=["samples", "seed"])
def test_what_was_not_foreseen_is_made_anew(device, asked):
    samples = Numbers()
    feed = Feed(samples, device)
    feed.batch(order(1, 2), lambda: order(3, 4))
    batch = feed.batch(asked, lambda: None)
    feed.close()
    assert batch.inputs[0].held.equal(asked[0] + asked[1] / 8)


def test_images_that_do_not_lie_in_memory_are_made_on_the_host(device):
    split = ArraySplit(lambda indices: torch.zeros(len(indices), 3, 4, 4).byte(), torch.arange(9),
                       Normalisation((0.5,) * 3, (0.5,) * 3))  # fmt: skip
    samples = ImageSamples(split)
    assert samples.on(device) is samples


def test_images_that_fit_lie_on_the_device_and_are_changed_there_alike(device):
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randint(256, (40, 3, 12, 10), dtype=torch.uint8, generator=generator)
    how = Normalisation((0.5, 0.25, 0.0), (0.5, 0.25, 1.0))
    split = ArraySplit(in_memory(pixels), torch.arange(40) % 7, how, CropFlip())
    feed = Feed(ImageSamples(split), device)
    feed.batch(order(0), lambda: None)  # what is put there once
    with waits() as calls:
        batch = feed.batch(order(9, 0, 39, 9, seed=5), lambda: None)
    feed.close()
    assert calls == []
    images, labels = split.batch(torch.tensor([9, 0, 39, 9]), 5)
    assert batch.inputs[0].held.equal(images)
    assert batch.targets.held.equal(labels)
