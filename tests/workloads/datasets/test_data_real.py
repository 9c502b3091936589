"""The real data sets, where they are."""

import pytest
import torch

from atomo.workloads.datasets import load_dataset


def test_the_real_mnist(real_data):
    mnist = load_dataset("MNIST", real_data)
    assert (len(mnist.train), len(mnist.test)) == (60_000, 10_000)
    images, labels = mnist.train.batch(torch.arange(60_000))
    assert labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert images.mean().abs() < 1e-3
    assert abs(images.std() - 1) < 1e-3


@pytest.fixture
def cifar10(real_data):
    if not (real_data / "cifar10/train").is_dir():
        pytest.skip(f"no cifar10/train in {real_data}, where ATOMO_DATA points; unpack it there")
    return load_dataset("Cifar10", real_data)


def test_the_real_cifar10_as_images(cifar10):
    assert (len(cifar10.train), len(cifar10.test)) == (50_000, 10_000)
    chosen = torch.arange(0, 50_000, 25)
    images, labels = cifar10.train.batch(chosen)
    assert labels.bincount().tolist() == [200] * 10
    assert images.mean((0, 2, 3)).abs().max() < 0.05
    assert (images.std((0, 2, 3)) - 1).abs().max() < 0.05
    augmented, again = (cifar10.train.batch(chosen, seed=1)[0] for _ in range(2))
    assert augmented.equal(again)
    assert not augmented.equal(images)
