"""The contract suite on tensors of a GPU: each test of it, with gradients and sums that lie there.

A payload is made of a gradient on the GPU, and added to a sum there; tests read the results on the
CPU. The tests are those of `tests/codecs/test_contract.py`, unchanged, except one: only the CPU
promises that several gradients encoded together have the bytes of each alone.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

PATH = Path(__file__).parents[1] / "codecs" / "test_contract.py"
SPEC = importlib.util.spec_from_file_location("codec_contract", PATH)
assert SPEC is not None
assert SPEC.loader is not None
CONTRACT = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(CONTRACT)
ONLY_ON_THE_CPU = "test_several_gradients_at_once_give_the_bytes_of_each"
TESTS = {name: one for name, one in vars(CONTRACT).items() if name.startswith("test_")}
del TESTS[ONLY_ON_THE_CPU]
Put = Callable[[Tensor], Tensor]
globals().update(TESTS)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; PyTorch sees none"),
]
# What goes there and comes back on a CPU is seen by `tests/gpu/test_lifted_contract.py`.


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends the inputs of codecs to the GPU, and the results back."""
    for kind in {type(codec) for codec in CONTRACT.CODECS_AND_MORE}:
        lift(monkeypatch, kind, Tensor.cuda)


def lift(monkeypatch: pytest.MonkeyPatch, kind: Any, put: Put) -> None:
    """Makes the codecs of a class encode and add on the GPU, or wherever `put` puts tensors."""
    encode, encode_all = kind.encode, kind.encode_all

    def encode_there(self: Any, gradient: Tensor, generator: Generator) -> Any:
        return encode(self, put(gradient), generator)

    def encode_all_there(
        self: Any, gradients: Sequence[Tensor], generators: Sequence[Generator]
    ) -> Iterator[Any]:
        return encode_all(self, [put(one) for one in gradients], generators)

    monkeypatch.setattr(kind, "encode", encode_there)
    monkeypatch.setattr(kind, "encode_all", encode_all_there)
    for name in ("add_decoded", "add_all"):
        monkeypatch.setattr(kind, name, adding_there(getattr(kind, name), put))


def adding_there(add: Any, put: Put) -> Any:
    """Returns a method that adds one payload, or several, to a sum on the GPU."""

    def add_there(self: Any, coming: Any, out: Tensor, scale: float = 1.0) -> None:
        there = put(out)
        add(self, coming, there, scale)
        if there is not out:
            out.copy_(there)

    return add_there


@pytest.mark.parametrize("codec", CONTRACT.CODECS_AND_MORE, ids=str)
def test_several_gradients_at_once_are_sent_as_each(codec: Any) -> None:
    given = [torch.randn(40, 30, generator=Generator().manual_seed(n)) for n in (1, 2)]
    several = codec.encode_all(given, [Generator().manual_seed(n) for n in (3, 4)])
    for one, payload, seed in zip(given, several, (3, 4), strict=True):
        sums = torch.zeros(40, 30), torch.zeros(40, 30)
        codec.add_decoded(payload, sums[0])
        codec.add_decoded(codec.encode(one, Generator().manual_seed(seed)), sums[1])
        torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-4)
