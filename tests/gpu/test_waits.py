"""Waits of the host for a device, counted on a fake device that behaves like CUDA.

Each wait leaves the device without work, unless a side stream has some. The count is that of a
bucket on CUDA: Triton's kernels are interpreted, and refuse tensors of the CPU as they do there. A
new codec needs a row here.
"""

from collections.abc import Iterator
from importlib import import_module

import pytest
import torch
from core.test_device import normal
from support import backends
from support.fake_device import DEVICE, Device, placed, use_staging, waits, with_triton
from support.selection import slow_but

from atomo.codecs import CODECS, make_codec
from atomo.errors import CodecError
from atomo.exchange import Compressor
from atomo.exchange.collectives.direct import Direct
from atomo.exchange.compressor import add_frame, add_frames
from atomo.fusion import plan
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.options.hook_config import HookConfig, make_exchange
from atomo.kernels import entropy
from atomo.memory import make_memory
from atomo.options.grouping import megabytes
from atomo.transports import network
from atomo.wire.compression import Compression

assert backends.TRITON  # which has Triton interpret
ENTRIES = 3000

# Waits to encode, and to decode what arrived; no more are allowed. A frame takes one more for all
# data on the device.
MOST = {
    "sgd": (0, 0),
    "fp16": (2, 0),
    "bf16": (1, 0),
    "svd": (1, 0),
    "entrywise": (5, 0),
    "fourier": (6, 5),
    "atomo": (12, 0),
    "sketchml": (1, 1),
    "lss": (8, 1),
    "countsketch": (1, 0),
    "qsgd": (2, 1),
    "terngrad": (3, 1),
    "natural": (2, 1),
    "lloydmax": (6, 0),  # one for each 8 rounds of Lloyd's algorithm
    "signsgd": (1, 0),
    "signum": (1, 0),
    "efsignsgd": (1, 0),
    "onebit": (1, 0),
    "topk": (2, 0),
    "threshold": (2, 0),
    "randk": (2, 0),
    "chunktopk": (3, 0),
    "tiletopk": (3, 0),
    "dgc": (4, 0),  # 3, and 1 for the threshold that is lowered once
    "dragonn": (4, 0),
    "rows": (2, 0),
}
USUAL = ("topk", "efsignsgd", "qsgd")


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_staging(monkeypatch)
    # As a GPU's programs would, many short chunks are read side by side: fewer steps to interpret.
    monkeypatch.setattr(import_module("atomo.kernels.prefix.cuda"), "CHUNK", 2)
    with with_triton(monkeypatch), Device():
        yield


def test_every_codec_has_a_row():
    assert set(MOST) == set(CODECS)


@pytest.mark.long(
    cases=(
        "natural",
        "terngrad",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize("spec", slow_but(USUAL, MOST))
def test_a_bucket_takes_few_waits(spec):
    (bucket,) = plan([("a", torch.Size((60, 50)))], make_codec(spec), megabytes(0.1))
    compressor = Compressor(make_memory("none"), Compression(), worker=1, seed=5)
    encoding, decoding = MOST[spec]
    with waits() as heard:
        payloads = compressor.encode(bucket, placed(normal((ENTRIES,))), 1)
    assert len(heard) <= encoding, heard
    with waits() as heard:
        frame = compressor.frame(bucket, payloads, 1, DEVICE)
    assert heard in ([], ["synchronize"])
    out, expected = placed(torch.zeros(ENTRIES)), torch.zeros(ENTRIES)
    with waits() as heard:
        add_frame(bucket, frame, out, 0.5)
    assert len(heard) <= decoding, heard
    add_frame(bucket, frame, expected, 0.5)
    torch.testing.assert_close(out.held, expected)


@pytest.mark.long(cases=("natural",))
@pytest.mark.parametrize(
    "spec", slow_but(("onebit",), ("natural", "onebit", "qsgd", "svd", "topk"))
)
def test_several_frames_take_no_more_than_one(spec):
    (bucket,) = plan([("a", torch.Size((60, 50)))], make_codec(spec), megabytes(0.1))
    compressors = [Compressor(make_memory("none"), Compression(), n, seed=5) for n in (1, 2, 3)]
    flat = normal((ENTRIES,))
    frames = [one.compress(bucket, flat.clone(), 1) for one in compressors]
    out, expected = placed(torch.zeros(ENTRIES)), torch.zeros(ENTRIES)
    with waits() as heard:
        add_frames(bucket, frames, out, 0.5)
    assert len(heard) <= MOST[spec][1], heard
    add_frames(bucket, frames, expected, 0.5)
    torch.testing.assert_close(out.held, expected)


@pytest.mark.long(cases=("natural",))
@pytest.mark.slow
@pytest.mark.parametrize("spec", ["natural", "qsgd", "terngrad"])
def test_a_damaged_code_is_refused_where_the_sum_is(spec):
    """No host waits for the streams alone: the reader of symbols reports that there are none."""
    codec = make_codec(spec)
    payload = codec.encode(normal((ENTRIES,)), torch.Generator().manual_seed(1))
    assert int(payload.words[1]) != entropy.PLAIN
    payload.words[2] ^= 1  # the size of the first stream, which ends elsewhere then
    out = placed(torch.ones(ENTRIES))
    with pytest.raises(CodecError):
        codec.add_decoded(payload, out, 0.5)
    assert out.held.eq(1).all()


@pytest.mark.parametrize("spec", ["efsignsgd", "topk", "threshold", "onebit"])
def test_a_residual_costs_no_wait(spec):
    (bucket,) = plan([("a", torch.Size((60, 50)))], make_codec(spec), megabytes(0.1))
    compressor = Compressor(make_memory("residual"), Compression(), worker=1, seed=5)
    with waits() as heard:
        compressor.encode(bucket, placed(normal((ENTRIES,))), 1)
    assert len(heard) <= MOST[spec][0], heard


def averager_of(code: str, chunk: Chunk) -> Exchange:
    """Returns the only rank of a group."""
    (transport,) = network(1)
    choice = HookConfig(code=code, skips=True)
    return make_exchange(choice, Direct(transport, 60.0), dict(chunk.gradients))


def test_a_bucket_of_the_hook_takes_as_many_and_a_look_at_its_peaks():
    """Stage by stage, in this thread. Whether averages are finite is asked once a step."""
    gradients = {"weight": placed(normal((60, 50))), "bias": placed(normal((50,)))}
    chunk = Chunk(0, gradients)
    averager = averager_of("efsignsgd", chunk)._averager
    with waits() as heard:
        averager.prepare(chunk, True)
        sent = averager.encode([chunk], lambda work: work())
    assert len(heard) <= 1 + MOST["efsignsgd"][0] + 1, heard  # peaks, signs, the frame
    sent = averager.exchange(sent)
    with waits() as heard:
        averager.decode(sent, True)
    assert heard == ["synchronize"]
