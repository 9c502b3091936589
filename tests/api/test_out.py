"""Frames decoded, and averaged, into tensors that a caller has."""

import pytest
import torch
from support.draws import normal

import atomo
from atomo.codecs import CODECS
from atomo.errors import CodecError, FrameError

LAYERS = [normal(12, 9), normal(5), normal(6, 4).half(), normal(3, 2).double()]
every_codec = pytest.mark.parametrize("code", [*CODECS])


def rooms() -> list[torch.Tensor]:
    """Allocates tensors of the shapes of LAYERS, filled, some of another layout."""
    return [torch.full((9, 12), torch.nan).T, torch.ones(5), torch.full((6, 4), 7.0).half(),
            torch.ones(3, 2).bfloat16()]  # fmt: skip


@every_codec
def test_what_is_written_is_what_is_returned_otherwise(code):
    frames = [atomo.encode(LAYERS, code, seed=seed) for seed in range(3)]
    before = [bytearray(frame) for frame in frames]
    for expected, written in (
        (atomo.decode(frames[0]), atomo.decode(frames[0], out=rooms())),
        (atomo.average(frames), atomo.average(frames, out=rooms())),
    ):
        for tensor, target, room in zip(expected, written, rooms(), strict=True):
            assert target.dtype is room.dtype
            assert target.equal(tensor.to(room.dtype))
    assert frames == before  # which tensors may share memory with


def test_out_is_returned_and_keeps_its_place():
    frame, room = atomo.encode(normal(4), "sgd", seed=0), torch.empty(4)
    assert atomo.decode(frame, out=room) is room
    assert atomo.average([frame, frame], out=room) is room
    assert room.equal(normal(4))
    model = torch.nn.Linear(3, 2)
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    means = [normal(2, 3), normal(2)]
    atomo.average([atomo.encode(means, "sgd", seed=0)], out=[p.grad for p in model.parameters()])
    assert all(p.grad.equal(mean) for p, mean in zip(model.parameters(), means, strict=True))
    atomo.decode(atomo.encode(means, "sgd", seed=0), out=[*model.parameters()])
    assert model.bias.equal(means[1])


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.empty(5), r"one tensor of \(4,\); out is one tensor of \(5,\)"),
        ([torch.empty(4)], r"one tensor of \(4,\); out is a list of 1: \(4,\)"),
    ],
)
def test_out_of_other_shapes_is_refused_and_left_alone(out, message):
    frame = atomo.encode(normal(4), "sgd", seed=0)
    with pytest.raises(FrameError, match=message):
        atomo.decode(frame, out=out)


def test_out_that_cannot_be_written_to_is_named():
    frame = atomo.encode([normal(4)], "sgd", seed=0)
    with pytest.raises(CodecError, match=r"out\[0\] is of torch.int64"):
        atomo.decode(frame, out=[torch.arange(4)])


def test_a_frame_that_is_refused_leaves_out_alone():
    frame = bytearray(atomo.encode(normal(4), "sgd", seed=0))
    frame[-1] ^= 1
    room = torch.ones(4)
    with pytest.raises(FrameError, match="damaged"):
        atomo.decode(frame, out=room)
    assert room.equal(torch.ones(4))
