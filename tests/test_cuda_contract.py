"""The contract suite on tensors of a GPU: each test of it, with gradients and sums that lie there.

A payload is made of a gradient on the GPU, and added to a sum there; what tests look at is on the
CPU. They are those of `tests/codecs/test_contract.py`, as they stand.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

PATH = Path(__file__).parent / "codecs" / "test_contract.py"
SPEC = importlib.util.spec_from_file_location("codec_contract", PATH)
assert SPEC is not None
assert SPEC.loader is not None
CONTRACT = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(CONTRACT)
globals().update({name: one for name, one in vars(CONTRACT).items() if name.startswith("test_")})

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; PyTorch sees none"),
]


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends what goes into codecs to the GPU, and what comes out back."""
    for kind in {type(codec) for codec in CONTRACT.CODECS_AND_MORE}:
        lift(monkeypatch, kind)


def lift(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """Has the codecs of a class encode and add up on the GPU."""
    encode, add = kind.encode, kind.add_decoded

    def encode_there(self: Any, gradient: Tensor, generator: Generator) -> Any:
        return encode(self, gradient.cuda(), generator)

    def add_there(self: Any, payload: Any, out: Tensor, scale: float = 1.0) -> None:
        there = out.cuda()
        add(self, payload, there, scale)
        if there is not out:
            out.copy_(there)

    monkeypatch.setattr(kind, "encode", encode_there)
    monkeypatch.setattr(kind, "add_decoded", add_there)
