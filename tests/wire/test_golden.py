"""Bytes are a promise: frames that an earlier version made decode to the same tensors for ever.

The files are never regenerated. A new codec adds one: `python tests/wire/test_golden.py CODE`.
"""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import atomo
from atomo.codecs import CODECS
from atomo.core.randomness import derive
from atomo.wire import Compression

GOLDEN = Path(__file__).parent / "golden"
TENSORS = ["weight", "bias"]
RAW = Compression(codec="none")  # blosc's own output may change with its version


def gradient(vector: int = 5) -> list[torch.Tensor]:
    """Builds a gradient by integer arithmetic, the same on every machine and version."""
    shapes = {"weight": (6, 4, 3, 3), "bias": (vector,)}
    return [
        torch.tensor(
            [derive("golden", name, i) % 2001 / 1000 - 1 for i in range(torch.Size(shape).numel())]
        ).view(shape)
        for name, shape in shapes.items()
    ]


@pytest.mark.parametrize("code", [*CODECS])
def test_decodes_what_an_earlier_version_encoded(code):
    frame = (GOLDEN / f"{code}.frame").read_bytes()
    expected = load_file(GOLDEN / f"{code}.safetensors")
    for name, decoded in zip(TENSORS, atomo.decode(frame), strict=True):
        torch.testing.assert_close(decoded, expected[name], rtol=1e-6, atol=1e-6)


# Frames that say below which size a vector is dense: here one is coded, which is so by size alone.
BOUNDED = ("svd", "atomo", "efsignsgd", "topk")


@pytest.mark.parametrize("code", BOUNDED)
def test_a_frame_says_which_vectors_are_dense(code):
    frame = (GOLDEN / f"{code}-bounded.frame").read_bytes()
    expected = load_file(GOLDEN / f"{code}-bounded.safetensors")
    for name, decoded in zip(TENSORS, atomo.decode(frame), strict=True):
        torch.testing.assert_close(decoded, expected[name], rtol=1e-6, atol=1e-6)
    assert not expected["bias"].equal(gradient(150)[1])


def create_bounded(code: str) -> None:
    """Creates frames as `create` does, with a vector that is not dense."""
    frame = GOLDEN / f"{code}-bounded.frame"
    if frame.exists():
        raise SystemExit(f"{frame} exists, and golden frames are never regenerated")
    data = atomo.encode(gradient(150), code, seed=1, compression=RAW, dense_below=100)
    frame.write_bytes(data)
    expected = dict(zip(TENSORS, atomo.decode(data), strict=True))
    save_file(expected, GOLDEN / f"{code}-bounded.safetensors")


def create(code: str) -> None:
    """Writes the golden frame of a new codec, and the decoded tensor."""
    frame = GOLDEN / f"{code}.frame"
    if frame.exists():
        raise SystemExit(f"{frame} exists, and golden frames are never regenerated")
    frame.write_bytes(atomo.encode(gradient(), code, seed=1, compression=RAW))
    expected = dict(zip(TENSORS, atomo.decode(frame.read_bytes()), strict=True))
    save_file(expected, GOLDEN / f"{code}.safetensors")


if __name__ == "__main__":
    create(sys.argv[1])
