"""Waits for the device in encoding: each read of a number on the device by the host is a wait."""

from typing import Any

import pytest
import torch
from support.fake_device import Device, placed, use_staging, waits
from torch import Generator
from torch.utils._python_dispatch import TorchDispatchMode

from atomo.codecs import make_codec
from atomo.codecs.spectral.atoms import probabilities
from atomo.exchange import Compressor
from atomo.fusion import plan
from atomo.memory import make_memory
from atomo.options.grouping import ONE
from atomo.wire import Compression

LOOKS = {torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal}


class Waits(TorchDispatchMode):
    """Counts the waits that would occur with tensors on a device."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += func.overloadpacket in LOOKS
        return func(*args, **(kwargs or {}))


def test_the_probabilities_stay_on_the_device():
    with Waits() as seen:
        probabilities(torch.rand(50, generator=Generator().manual_seed(1)), 3.0)
    assert seen.count == 0


@pytest.mark.parametrize(("shape", "maximum"), [((64, 32, 3, 3), 5), ((500, 64), 5)])
def test_a_layer_takes_few_waits(shape, maximum):
    """Counts waits for trace, smallest and largest eigenvalue, the drawn atoms, and overflow."""
    gradient = torch.randn(shape, generator=Generator().manual_seed(1))
    with Waits() as seen:
        make_codec("svd(rank=3)").encode(gradient, Generator().manual_seed(2))
    assert seen.count <= maximum


LAYERS = [("a", (64, 32, 3, 3)), ("b", (16, 8, 3, 3)), ("c", (16, 8, 3, 3)), ("d", (500, 64))]


WIDE = [("e", (300, 130)), ("f", (200, 150)), ("g", (650, 645))]


@pytest.mark.parametrize(
    ("spec", "memory", "layers", "maximum"),
    [
        ("svd(rank=3)", "none", LAYERS, 1),
        ("svd(rank=3, selection=top)", "residual", LAYERS + WIDE, 1),
        ("svd(rank=3)", "none", LAYERS + WIDE, 2),
    ],
)
def test_all_layers_of_a_bucket_take_one_wait(monkeypatch, spec, memory, layers, maximum):
    """Counts a wait for the drawn atoms and their accuracy, and another for the ranks of wide
    layers."""
    use_staging(monkeypatch)
    parameters = [(name, torch.Size(shape)) for name, shape in layers]
    (bucket,) = plan(parameters, make_codec(spec), ONE)
    compressor = Compressor(make_memory(memory), Compression(), worker=1, seed=5)
    flat = torch.randn(bucket.size, generator=Generator().manual_seed(1))
    with Device(), waits() as recorded:
        payloads = compressor.encode(bucket, placed(flat), step=1)
    assert len(payloads) == len(layers)
    assert len(recorded) == maximum, recorded
