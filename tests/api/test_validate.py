"""Errors of `atomo.encode` for arguments of a wrong type. The tests' own type checks would come
first, so that the checks are called directly."""

import numpy as np
import pytest
import torch

from atomo.api.validate import (
    as_codec,
    as_compression,
    as_frame,
    as_frames,
    as_memory,
    as_tensors,
    named,
    seeded,
    whole,
)
from atomo.codecs.dense.dense import Dense
from atomo.errors import CodecError, ConfigError
from atomo.memory import Residual


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones(3), "got a numpy array of float64; torch.from_numpy makes"),
        ([np.ones(3)], r"tensors\[0\] must be a tensor, got a numpy array"),
        (None, "must be a tensor or a list of tensors, got None of type NoneType"),
        (1.5, "got 1.5 of type float"),
        ("weights", "got 'weights' of type str"),
        ({"w": torch.ones(2)}, "got {'w': tensor.* of type dict"),
        ([[torch.ones(2)]], r"tensors\[0\] must be a tensor, got \[tensor.* of type list"),
    ],
)
def test_what_is_no_tensor_is_named(given, message):
    with pytest.raises(CodecError, match=message):
        as_tensors(given)


@pytest.mark.parametrize(
    ("seed", "told"),
    [(None, "None of type NoneType"), (1.5, "1.5 of type float"), ("1", "'1' of type str")],
)
def test_a_seed_that_is_no_number_is_named(seed, told):
    with pytest.raises(CodecError, match=f"seed must be a whole number, got {told}"):
        seeded(seed)


def test_numbers_of_numpy_are_seeds():
    assert seeded(np.int64(3)).initial_seed() == 3


@pytest.mark.parametrize("code", [None, 3])
def test_what_is_no_codec_is_named(code):
    with pytest.raises(ConfigError, match="code must be a codec or its specification, got"):
        as_codec(code)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: as_codec(Dense), ConfigError, r"a codec, not its class: write Dense\(\)"),
        (lambda: as_codec(torch.ones(2)), ConfigError, "of type Tensor; tensors come first, and"),
        (lambda: as_codec("powersg("), ConfigError, "codec 'powersg'; did you mean 'powersgd'"),
        (lambda: as_codec("topk("), ConfigError, r"'topk\(': its brackets do not match; write it"),
        (lambda: as_codec("PowerSGD(rank=4)"), ConfigError,
         "powersgd is no codec: .* several rounds.*atomo.ddp_hook .*--comm-type PowerSGD"),
        (lambda: seeded(True), CodecError, "seed must be a whole number, got True of type bool"),
        (lambda: whole("dense_below", "9"), ConfigError, "dense_below must be a whole number, got"),
        (lambda: whole("most_entries", None), ConfigError, "most_entries must be a whole number"),
        (lambda: as_memory("residual"), ConfigError,
         r"got 'residual' of type str; .* as atomo.make_memory\('residual'\), or use"),
        (lambda: as_memory(Residual), ConfigError, "must be a memory of atomo.make_memory, got"),
        (lambda: as_compression("zstd"), ConfigError, r"such as atomo.Compression\('zstd'"),
        (lambda: as_frame("ATMO"), CodecError, "a frame must be bytes from encode, got 'ATMO' of"),
        (lambda: as_frame([b""]), CodecError, "of type list; atomo.average takes several frames"),
        (lambda: as_frame(memoryview(b"abcd")[::2]), CodecError, "contiguous bytes"),
        (lambda: as_frames(b"ATMO"), CodecError, "got one frame: atomo.decode reads it"),
        (lambda: as_frames(3), CodecError, "frames must be a list, a frame of each worker, got 3"),
        (lambda: as_frames([1]), CodecError, "must be bytes from encode, got 1 of type int"),
        (lambda: as_tensors({"w": 1}), CodecError, "name tensors with atomo.Encoder"),
        (lambda: as_tensors(torch.nn.Linear(1, 1)), CodecError, r"gradients of its parameters\(\)"),
        (lambda: as_tensors("topk"), CodecError, "tensors come first, and the codec second"),
        (lambda: named({3: torch.ones(1)}), CodecError, "name of a tensor must be text, got 3"),
    ],
)  # fmt: skip
def test_what_is_given_wrongly_is_told_in_the_words_of_the_door(call, error, message):
    with pytest.raises(error, match=message):
        call()
