"""The one-shot functions: any tensor, any codec, self-describing bytes."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import normal

import atomo
from atomo.codecs import CODECS, Law
from atomo.errors import CodecError, ConfigError, FrameError
from atomo.fusion import plan
from atomo.options.grouping import ONE
from atomo.wire.frame import CHECKSUM_AT, checksum

every_codec = pytest.mark.parametrize("code", [*CODECS])


@every_codec
def test_a_tensor_comes_back_as_a_tensor_and_a_list_as_a_list(code):
    tensors = [normal(6, 4, 3, 3), normal(5), normal(7, 2).double(), normal(3, 3).bfloat16()]
    decoded = atomo.decode(atomo.encode(tensors, code, seed=1))
    assert [(t.shape, t.dtype) for t in decoded] == [(t.shape, t.dtype) for t in tensors]
    for tensor in tensors:
        again = atomo.decode(atomo.encode(tensor, code, seed=1))
        assert (again.shape, again.dtype) == (tensor.shape, tensor.dtype)
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
    ("given", "message"),
    [
        (torch.arange(3), "the tensor is of torch.int64; give floating point"),
        (torch.ones(2, dtype=torch.cfloat), "of torch.complex64"),
        (torch.empty(0), r"the tensor is empty: its shape is \(0,\)"),
        ([torch.ones(2), torch.empty(3, 0)], r"tensors\[1\] is empty: its shape is \(3, 0\)"),
        (torch.eye(3).to_sparse(), "the tensor is torch.sparse_coo; give it dense"),
        (torch.ones(3, device="meta"), "on the meta device"),
        (torch.ones([1] * 17), "has 17 dimensions; at most 16"),
        (torch.tensor([1e300], dtype=torch.float64), r"an entry of 1e\+300 is beyond float32"),
    ],
)
def test_what_is_no_gradient_is_named(given, message):
    with pytest.raises(CodecError, match=message):
        atomo.encode(given, "sgd", seed=0)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_out_of_range_is_named(seed):
    with pytest.raises(CodecError, match="seed must be from"):
        atomo.encode(normal(3), "sgd", seed=seed)


@pytest.mark.parametrize("seed", [-(2**63), 2**64 - 1])
def test_every_seed_of_a_generator_is_one(seed):
    assert atomo.decode(atomo.encode(normal(9), "qsgd", seed=seed)).shape == (9,)


@every_codec
def test_a_flat_gradient_is_coded_like_any_other(code):
    flat = normal(10_000)
    data = atomo.encode(flat, code, seed=0)
    assert atomo.decode(data).shape == flat.shape
    assert (len(data) < 0.95 * flat.nbytes) != (code in ("sgd", "threshold", "rows"))
    assert len(atomo.encode([flat], code, seed=0)) < len(data) + 20  # no bias is of this size


@every_codec
@pytest.mark.parametrize("parameter", [(5,), (4096,), (8191,), ()])
def test_small_vectors_of_a_list_are_dense_in_frames_and_in_training(code, parameter):
    codec = atomo.make_codec(code)
    bias = normal(*parameter)
    decoded = atomo.decode(atomo.encode([bias], code, seed=0))[0]
    assert decoded.equal(bias)
    (bucket,) = plan([("bias", bias.shape)], codec, ONE)
    assert [part.codec.id for part in bucket.parts] == ["sgd"]


@every_codec
@pytest.mark.parametrize("parameter", [(8192,), (3, 3)])
def test_layers_and_flat_gradients_are_coded_in_frames_and_in_training(code, parameter):
    (bucket,) = plan([("weight", torch.Size(parameter))], atomo.make_codec(code), ONE)
    assert [part.codec.id for part in bucket.parts] == [code]


def test_what_is_dense_can_be_chosen():
    tensors = [normal(50), normal(60)]
    first, second = atomo.decode(atomo.encode(tensors, "efsignsgd", seed=0, dense_below=60))
    assert first.equal(tensors[0])
    assert len(second.abs().unique()) == 1
    assert atomo.decode(atomo.encode(tensors[0], "svd", seed=0, dense_below=51)).equal(tensors[0])


@every_codec
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_near_the_limit_of_its_dtype_does_not_become_infinite(code, dtype):
    largest = torch.finfo(dtype).max if dtype is torch.float16 else 1e30
    gradient = (normal(40, 30).sign() * largest).to(dtype)
    for seed in range(3):
        decoded = atomo.decode(atomo.encode(gradient, code, seed=seed))
        assert decoded.isfinite().all()
        assert decoded.dtype is dtype


def test_infinity_itself_travels_as_it_is():
    gradient = torch.tensor([float("inf"), -float("inf"), 1.0], dtype=torch.float16)
    assert atomo.decode(atomo.encode(gradient, "sgd", seed=0)).equal(gradient)


def test_a_memory_adds_what_was_not_sent():
    memory, gradient = atomo.make_memory("residual"), normal(30, 4)
    came_in, sent = torch.zeros(30, 4), torch.zeros(30, 4)
    for seed in range(4):
        before = gradient.clone()
        frame = atomo.encode([gradient, normal(3)], "topk(ratio=0.1)", seed=seed, memory=memory)
        assert gradient.equal(before)
        came_in += gradient
        sent += atomo.decode(frame)[0]
    torch.testing.assert_close(sent + memory.state_dict()["0"], came_in)


@every_codec
def test_the_average_is_that_of_a_training_step(code):
    codec = atomo.make_codec(code)
    frames = [atomo.encode([normal(9, 8), normal(4)], code, seed=seed) for seed in range(3)]
    parts = [atomo.decode(frame) for frame in frames]
    weight, bias = (torch.stack(tensors).mean(0) for tensors in zip(*parts, strict=True))
    codec.finish(weight)
    mean = atomo.average(frames)
    torch.testing.assert_close(mean, [weight, bias], rtol=1e-4, atol=1e-5)


def test_frames_of_different_tensors_have_no_average():
    frames = [atomo.encode(normal(n), "sgd", seed=0) for n in (3, 4)]
    with pytest.raises(FrameError, match=r"same tensors and codec: sgd of .*4.* is not sgd of .*3"):
        atomo.average(frames)
    with pytest.raises(CodecError, match="at least one frame"):
        atomo.average([])


def test_an_unknown_code_is_refused():
    with pytest.raises(ConfigError, match="known: sgd"):
        atomo.encode(normal(3), "zip", seed=0)


def test_a_frame_of_more_entries_than_wanted_is_refused():
    data = atomo.encode(torch.zeros(1000), "sgd", seed=0)
    with pytest.raises(FrameError, match="1000 entries; at most 999"):
        atomo.decode(data, most_entries=999)


@pytest.mark.slow
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
