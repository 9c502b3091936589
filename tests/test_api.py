"""The one-shot functions: any tensor, any codec, self-describing bytes."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

import atomo
from atomo.codecs import CODECS, Law
from atomo.errors import CodecError, ConfigError, FrameError
from atomo.wire.frame import CHECKSUM_AT, checksum

every_codec = pytest.mark.parametrize("code", [*CODECS])


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=Generator().manual_seed(0))


@every_codec
def test_a_tensor_comes_back_as_a_tensor_and_a_list_as_a_list(code):
    tensors = [normal(6, 4, 3, 3), normal(5), normal(7, 2).double(), normal(3, 3).bfloat16()]
    decoded = atomo.decode(atomo.encode(tensors, code, seed=1))
    assert [(t.shape, t.dtype) for t in decoded] == [(t.shape, t.dtype) for t in tensors]
    for one in tensors:
        again = atomo.decode(atomo.encode(one, code, seed=1))
        assert (again.shape, again.dtype) == (one.shape, one.dtype)
    if Law.LOSSLESS in atomo.make_codec(code).laws:
        assert all(
            a.equal(b) for a, b in zip(tensors, decoded, strict=True) if a.dtype != torch.float64
        )


@every_codec
def test_same_seed_same_bytes(code):
    assert atomo.encode(normal(30, 20), code, seed=3) == atomo.encode(normal(30, 20), code, seed=3)


def test_another_seed_samples_other_atoms():
    draws = {atomo.encode(normal(30, 20), "svd(rank=3)", seed=seed) for seed in range(5)}
    assert len(draws) == 5


def test_an_empty_list_is_an_empty_list():
    assert atomo.decode(atomo.encode([], "svd", seed=0)) == []


def test_a_codec_does_as_well_as_its_specification():
    codec = atomo.make_codec("svd(rank=2)")
    assert atomo.encode(normal(9, 9), codec, seed=0) == atomo.encode(
        normal(9, 9), "svd(rank=2)", seed=0
    )


@pytest.mark.parametrize(
    "tensor", [torch.arange(3), torch.empty(0), torch.ones(2, dtype=torch.cfloat)]
)
def test_what_is_no_gradient_is_refused(tensor):
    with pytest.raises(CodecError):
        atomo.encode(tensor, "sgd", seed=0)


def test_an_unknown_code_is_refused():
    with pytest.raises(ConfigError, match="known: sgd"):
        atomo.encode(normal(3), "zip", seed=0)


def test_a_frame_of_more_entries_than_wanted_is_refused():
    data = atomo.encode(torch.zeros(1000), "sgd", seed=0)
    with pytest.raises(FrameError, match="1000 entries; at most 999"):
        atomo.decode(data, most_entries=999)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
    code=st.sampled_from([*CODECS]),
)
def test_mutations_decode_to_the_declared_shape_or_are_refused(edits, code):
    frame = np.frombuffer(atomo.encode([normal(8, 6), normal(5)], code, seed=0), np.uint8).copy()
    for position, value in edits:
        frame[position % frame.size] = value
    struct.pack_into("<Q", frame.data, CHECKSUM_AT, checksum(frame))
    try:
        decoded = atomo.decode(frame.tobytes(), most_entries=100_000)
    except FrameError:
        return
    assert all(isinstance(tensor, torch.Tensor) for tensor in decoded)
