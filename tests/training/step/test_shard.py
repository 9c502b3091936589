"""The division of images among workers."""

import pytest
import torch

from atomo.errors import ConfigError
from atomo.training.job.shard import Shard, steps_per_epoch


def epoch(shards: list[Shard], number: int) -> list[list[int]]:
    """For each worker, its images of one epoch."""
    length = shards[0].steps_per_epoch
    steps = range(number * length + 1, (number + 1) * length + 1)
    return [[int(i) for step in steps for i in shard.indices(step)] for shard in shards]


def shards(workers: int, batch_size: int = 4, seed: int = 0) -> list[Shard]:
    return [Shard(103, workers, index, batch_size, seed) for index in range(workers)]


def test_no_image_goes_to_two_workers_or_comes_twice_in_an_epoch():
    seen = [i for images in epoch(shards(3), 0) for i in images]
    assert len(seen) == len(set(seen)) == 103 // 12 * 12


def test_every_epoch_is_shuffled_anew_and_drops_others():
    first, second = (
        [image for images in epoch(shards(3), number) for image in images] for number in (0, 1)
    )
    assert first != second
    assert set(first) != set(second)


def test_the_joined_batch_does_not_depend_on_the_number_of_workers():
    joined = torch.cat([shard.indices(7) for shard in shards(2, batch_size=6)])
    assert joined.equal(shards(1, batch_size=12)[0].indices(7))


def test_the_order_is_a_function_of_the_seed():
    assert epoch(shards(2), 0) == epoch(shards(2), 0)
    assert epoch(shards(2), 0) != epoch(shards(2, seed=1), 0)


def test_steps_may_be_asked_for_in_any_order():
    shard = shards(2)[0]
    later = shard.indices(30)
    shard.indices(1)
    assert shard.indices(30).equal(later)


@pytest.mark.parametrize("left", [1, 2, 3, 4])
def test_those_who_are_left_divide_the_images_of_each_step(left):
    """The step keeps its images, and parts differ by at most one image."""
    whole = torch.cat([shard.indices(9) for shard in shards(5)])
    survivors = shards(5)[:left]
    for place, shard in enumerate(survivors):
        shard.divide(place, left)
    parts = [shard.indices(9) for shard in survivors]
    assert torch.cat(parts).equal(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_too_few_images_are_named():
    with pytest.raises(ConfigError, match="takes 120 images a step, and the training set has 100"):
        steps_per_epoch(100, 3, 40)
