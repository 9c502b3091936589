"""Splits of images in one size."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from atomo.workloads.datasets.arrays import ArraySplit, CropFlip, Normalisation, in_memory

HALVES = Normalisation((0.5, 0.25, 0.0), (0.5, 0.25, 1.0))


def images(n, *shape):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(1, 256, (n, *shape), dtype=torch.uint8, generator=generator)


def split(n=50, augment=None):
    return ArraySplit(in_memory(images(n, 3, 12, 10)), torch.arange(n) % 7, HALVES, augment)


def test_normalises_each_channel():
    out = HALVES(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 1, 1))
    torch.testing.assert_close(out.flatten(1), torch.tensor([[-1.0, -1, 0], [1, 3, 1]]))


def test_a_batch_is_what_was_asked_for_in_that_order():
    indices = torch.tensor([9, 0, 49, 9])
    batch, labels = split().batch(indices)
    assert batch.equal(HALVES(images(50, 3, 12, 10)[indices]))
    assert labels.tolist() == [2, 0, 0, 2]
    assert (batch.dtype, labels.dtype) == (torch.float32, torch.int64)


def test_nothing_is_augmented_without_a_seed_or_without_an_augmentation():
    everything = torch.arange(50)
    plain = split().batch(everything)[0]
    assert split(augment=CropFlip()).batch(everything)[0].equal(plain)
    assert split().batch(everything, seed=1)[0].equal(plain)


def test_an_image_is_augmented_alike_in_every_batch():
    s, order = split(augment=CropFlip()), torch.randperm(50, generator=torch.Generator())
    whole, _ = s.batch(order, seed=5)
    parts = torch.cat([s.batch(part, seed=5)[0] for part in order.split(7)])
    assert whole.equal(parts)
    assert s.batch(order.flip(0), seed=5)[0].equal(whole.flip(0))
    changed = (s.batch(order, seed=6)[0] != whole).flatten(1).any(1)
    assert changed.float().mean() > 0.9


@pytest.mark.parametrize(("height", "width"), [(8, 8), (6, 9)])
def test_every_crop_and_mirroring_is_drawn_equally_often(height, width):
    n, padding = 16_200, 4
    image = images(1, 2, height, width)
    padded = F.pad(image, [padding] * 4)
    crops = [
        padded[0, :, top : top + height, left : left + width]
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    ]
    expected = torch.stack([*crops, *(crop.flip(2) for crop in crops)]).flatten(1)
    drawn = CropFlip(padding)(image.expand(n, -1, -1, -1), torch.arange(n), seed=11).flatten(1)
    codes = {tuple(row): i for i, row in enumerate(expected.tolist())}
    counts = torch.tensor([codes[tuple(row)] for row in drawn.tolist()]).bincount(minlength=162)
    assert counts.sub(100).square().div(100).sum() < 222  # chi-square, 161 degrees: p = 1e-3


def test_without_flip_no_image_is_mirrored():
    ramp = torch.arange(1, 9, dtype=torch.uint8).expand(200, 1, 8, 8)
    drawn = CropFlip(padding=2, flip=False)(ramp, torch.arange(200), seed=0)
    assert (drawn[:, 0, 3, 3] < drawn[:, 0, 3, 4]).all()


def test_the_source_is_left_unchanged():
    source = images(20, 3, 8, 8)
    s = ArraySplit(in_memory(source), torch.zeros(20, dtype=torch.int64), HALVES, CropFlip())
    s.batch(torch.arange(20), seed=1)
    s.batch(torch.arange(20))
    assert source.equal(images(20, 3, 8, 8))
