"""What is of another type than `atomo.encode` takes is named: here the tests' own type checks would
be first to say so, so that its checks are called as it calls them."""

import numpy as np
import pytest
import torch

from atomo.api.given import as_codec, as_tensors, seeded
from atomo.codecs.dense.dense import Dense
from atomo.errors import CodecError, ConfigError


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


@pytest.mark.parametrize("code", [None, 3, Dense])
def test_what_is_no_codec_is_named(code):
    with pytest.raises(ConfigError, match="code must be a codec or its specification, got"):
        as_codec(code)
