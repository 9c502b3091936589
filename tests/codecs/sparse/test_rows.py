"""Rows of a matrix: a codec makes the same payload of some rows as of the whole, byte for byte."""

import pytest
import torch
from support.draws import seeded

from atomo.codecs import make_codec
from atomo.codecs.rows import RowGradient
from atomo.errors import CodecError

HEIGHT, WIDTH = 900, 160  # enough entries for samples and strides
SELECTORS = [
    "topk(ratio=0.001)",
    "topk(ratio=0.5)",
    "topk(ratio=0.01, values=qsgd)",
    "threshold(value=1.5)",
    "dgc(ratio=0.001)",
    "dgc(ratio=0.2)",
    "dragonn(ratio=0.001)",
    "dragonn(threshold=1000000)",
]


def touched(count: int, seed: int = 3) -> RowGradient:
    generator = seeded(seed)
    rows = torch.randperm(HEIGHT, generator=generator)[:count].sort().values
    values = torch.randn(count, WIDTH, generator=generator)
    return RowGradient(rows, values, torch.Size((HEIGHT, WIDTH)))


def whole(gradient: RowGradient) -> torch.Tensor:
    out = torch.full(tuple(gradient.shape), 7.0)
    gradient.write_to(out)
    return out


@pytest.mark.parametrize("count", [0, 1, 40, HEIGHT])
@pytest.mark.parametrize("code", [*SELECTORS, "sgd", "qsgd"])
def test_rows_encode_as_the_whole_matrix_does(code, count):
    codec, gradient = make_codec(code), touched(count)
    expected = codec.encode(whole(gradient), seeded(5))
    result = codec.encode_rows(gradient, seeded(5))
    pairs = zip(codec.sections(result), codec.sections(expected), strict=True)
    assert all(actual.equal(second) for actual, second in pairs)


@pytest.mark.parametrize("code", SELECTORS)
def test_rows_that_cannot_be_carried_are_refused(code):
    gradient = touched(5)
    gradient.values[2, 3] = torch.inf
    with pytest.raises(CodecError, match="NaN or infinity"):
        make_codec(code).encode_rows(gradient, seeded(5))


def test_entries_are_found_where_they_lie():
    gradient = touched(40)
    flat = whole(gradient).view(-1)
    positions = torch.arange(7, HEIGHT * WIDTH, 33)
    assert gradient.at(positions).equal(flat[positions])
    assert flat[gradient.places(torch.arange(40 * WIDTH))].equal(gradient.values.view(-1))


@pytest.mark.parametrize("code", ["rows", "rows(values=fp16)"])
def test_the_codec_of_rows_sends_what_is_there(code):
    codec, gradient = make_codec(code), touched(40)
    payload = codec.encode_rows(gradient, seeded(5))
    pairs = zip(
        codec.sections(payload),
        codec.sections(codec.encode(whole(gradient), seeded(5))),
        strict=True,
    )
    assert all(actual.equal(expected) for actual, expected in pairs)
    decoded = codec.decode(payload, gradient.shape)
    torch.testing.assert_close(decoded, whole(gradient), rtol=1e-3, atol=1e-6)
    assert decoded.count_nonzero() == 40 * WIDTH
    none = codec.encode(torch.zeros(3, 5), seeded(5))
    assert not codec.decode(none, torch.Size((3, 5))).any()


def test_rows_of_another_size_are_refused():
    codec = make_codec("rows")
    payload = codec.encode_rows(touched(40), seeded(5))
    with pytest.raises(CodecError, match=r"rows: .* values for "):
        codec.decode(payload, torch.Size((HEIGHT, WIDTH + 1)))
