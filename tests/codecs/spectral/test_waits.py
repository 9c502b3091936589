"""How often encoding waits for the device: each look of the host at a number there is a wait."""

from typing import Any

import pytest
import torch
from torch import Generator
from torch.utils._python_dispatch import TorchDispatchMode

from atomo.codecs import make_codec
from atomo.codecs.spectral.atoms import probabilities

LOOKS = {torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal}


class Waits(TorchDispatchMode):
    """Counts what would wait, were the tensors on a device."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += func.overloadpacket in LOOKS
        return func(*args, **(kwargs or {}))


def test_the_probabilities_stay_on_the_device():
    with Waits() as waits:
        probabilities(torch.rand(50, generator=Generator().manual_seed(1)), 3.0)
    assert waits.count == 0


@pytest.mark.parametrize(("shape", "most"), [((64, 32, 3, 3), 5), ((500, 64), 5)])
def test_a_layer_takes_few_waits(shape, most):
    """Trace, smallest and largest eigenvalue, the atoms drawn, and whether they overflow."""
    gradient = torch.randn(shape, generator=Generator().manual_seed(1))
    with Waits() as waits:
        make_codec("svd(rank=3)").encode(gradient, Generator().manual_seed(2))
    assert waits.count <= most
