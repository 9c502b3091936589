"""Buckets in half precision, as DDP has them of a model of that: taken where they lie."""

from dataclasses import replace

import pytest
import torch
from hooks.gradient_layouts import PARAMETERS, apart, padded, row_of, strided
from support.harness import PATIENCE_S, together
from torch import Tensor

from atomo.codecs import make_codec
from atomo.exchange.collectives.direct import Direct
from atomo.hooks.adapter.chunks import Chunk, Codecs, bucket_of, flat_gradient
from atomo.hooks.options.hook_config import HookConfig, make_exchange
from atomo.kernels.peaks import INFINITY
from atomo.transports import network

HALVES = (torch.bfloat16, torch.float16)


CODECS = Codecs(make_codec("qsgd"))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_bucket_in_half_precision_is_taken_where_it_lies(dtype):
    chunk, flat = row_of(dtype), torch.full((630,), 7.0)
    bucket = bucket_of(0, chunk.parameters, CODECS)
    given, peaks = flat_gradient(bucket, chunk, flat, reads=True)
    assert given.data_ptr() == chunk.whole.data_ptr()
    assert flat.eq(7).all()
    wide, wide_peaks = flat_gradient(bucket, row_of(torch.float32), flat, reads=True)
    assert wide is flat
    assert wide.to(dtype).equal(given)
    rounded, exact = (
        torch.tensor(p, dtype=torch.int32).view(torch.float32) for p in (peaks, wide_peaks)
    )
    assert rounded.to(dtype).equal(exact.to(dtype))


def test_what_is_scaled_or_not_read_so_is_widened_into_the_room_of_the_mean():
    chunk, flat = row_of(torch.bfloat16), torch.empty(630)
    bucket = bucket_of(0, chunk.parameters, CODECS)
    for scale, reads in ((2.0, True), (1.0, False)):
        given, _ = flat_gradient(bucket, replace(chunk, scale=scale), flat, reads)
        assert given is flat
        assert flat.equal(chunk.whole.float() / scale)


@pytest.mark.parametrize("lay", [strided, apart, padded])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_lies_otherwise_is_joined_in_half_precision_in_that_room(dtype, lay):
    chunk, flat = lay(row_of(dtype)), torch.empty(630)
    bucket = bucket_of(0, chunk.parameters, CODECS)
    given, peaks = flat_gradient(bucket, chunk, flat, reads=True)
    assert given.data_ptr() == flat.data_ptr()
    assert given.equal(torch.cat([one.flatten() for one in chunk.gradients.values()]))
    largest = [one.abs().amax().float() for one in chunk.gradients.values()]
    assert torch.tensor(peaks, dtype=torch.int32).view(torch.float32).equal(torch.stack(largest))


def averaged(chunks: list[Chunk], code: str) -> list[Tensor]:
    """Returns each rank's chunk after averaging, with gradients in one buffer or apart."""
    transports = network(len(chunks))

    def run(rank: int) -> None:
        chunk = chunks[rank]
        collective = Direct(transports[rank], PATIENCE_S)
        exchange = make_exchange(HookConfig(code=code), collective, dict(chunk.gradients))
        exchange.submit(chunk, 1.0, True, lambda: None)
        exchange.finish()

    together([lambda rank=rank: run(rank) for rank in range(len(chunks))], lambda: None)
    return [chunk.whole for chunk in chunks if chunk.whole is not None]


@pytest.mark.parametrize("code", ["topk(ratio=0.1)", "qsgd", "svd(rank=2)", "randk(ratio=0.5)"])
def test_its_mean_is_that_of_float32_copies_rounded(code):
    make_codec(code)  # imported before there are threads
    found = averaged([row_of(torch.bfloat16, seed) for seed in (1, 2)], code)
    expected = averaged([widened(row_of(torch.bfloat16, seed)) for seed in (1, 2)], code)
    for one, other in zip(found, expected, strict=True):
        assert one.equal(other.bfloat16())


def widened(chunk: Chunk) -> Chunk:
    """Returns a chunk with the same gradients in float32."""
    assert chunk.whole is not None
    whole = chunk.whole.float()
    parts = torch.split(whole, [shape.numel() for _, shape in PARAMETERS])
    pairs = zip(PARAMETERS, parts, strict=True)
    return Chunk(0, {name: part.view(shape) for (name, shape), part in pairs}, whole)


def test_what_is_not_finite_is_told():
    chunk = row_of(torch.float16)
    chunk.gradients["b"][3] = float("inf")
    bucket = bucket_of(0, chunk.parameters, CODECS)
    peaks = flat_gradient(bucket, chunk, torch.empty(630), reads=True)[1]
    assert [peak >= INFINITY for peak in peaks] == [False, True]
