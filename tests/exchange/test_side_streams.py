"""Streams of encoding and decoding on a device: buckets are coded while it computes, each after its
gradient.
"""

from collections.abc import Callable
from typing import Any, final

import numpy as np
import pytest
import torch
from support.fake_device import Device, StreamModule, placed, use_staging
from torch import Tensor

from atomo.codecs import Codec, make_codec
from atomo.exchange import Compressor
from atomo.exchange.base import ALL_USED, Reduction, Usage
from atomo.exchange.collectives.direct import Direct
from atomo.exchange.engine.pipeline import Pipeline
from atomo.exchange.parameter_server.uplink import Uplink
from atomo.fusion import Bucket, plan
from atomo.memory import make_memory
from atomo.options.grouping import megabytes
from atomo.transports import network
from atomo.wire.compression import Compression

BUCKETS = plan(
    [("a", torch.Size((20, 30))), ("b", torch.Size((20, 30)))], make_codec("sgd"), megabytes(0.001)
)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> StreamModule:
    return use_staging(monkeypatch)


def compressor() -> Compressor:
    return Compressor(make_memory("none"), Compression(), worker=1, seed=5)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_worker_encodes_beside_the_backward_pass(monkeypatch, module, threads):
    seen = []

    def compress(self, bucket, flat, step):
        seen.append(module.current_stream())
        return np.zeros(8, np.uint8)

    monkeypatch.setattr(Compressor, "compress", compress)
    uplink = Uplink(network(2)[1], compressor(), 60.0, threads, lambda step, bucket, frame: None)
    uplink.begin(1, BUCKETS)
    for bucket in BUCKETS:
        uplink.push(bucket, placed(torch.zeros(bucket.size)))
    uplink.flush()
    assert_beside(module, seen, len(BUCKETS))


def assert_beside(module: StreamModule, seen: list[Any], times: int) -> None:
    """Checks that one side stream waits for the main one each time, and that the main one waits for
    it at the end.
    """
    (side,) = set(seen)
    assert len(seen) == times > 1
    assert side is not module.main
    assert side.follows == [module.main] * times
    assert module.main.follows == [side]


@final
class StreamRecorder(Reduction[str, str]):
    """A reduction that records the stream of each call."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    @classmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        return codec

    def encode(self, bucket: Bucket, flat: Tensor, step: int, usage: Usage = ALL_USED) -> str:
        self._tell()
        return "encoded"

    def exchange(self, bucket: Bucket, encoded: str, step: int) -> str:
        self._tell()
        return "received"

    def decode(self, bucket: Bucket, received: str, step: int, out: Tensor) -> None:
        self._tell()


def test_ranks_without_a_master_encode_and_decode_there(module):
    seen: list[Any] = []
    collective = Direct(network(1)[0], 60.0)
    reduction = StreamRecorder(lambda: seen.append(module.current_stream()))
    pipeline = Pipeline(collective, compressor(), reduction)
    size = sum(bucket.size for bucket in BUCKETS)
    with Device():
        pipeline.begin(1, BUCKETS, placed(torch.zeros(size)))
        for bucket in BUCKETS:
            pipeline.push(bucket, placed(torch.zeros(bucket.size)))
        pipeline.settle()
    assert_beside(module, seen, 3 * len(BUCKETS))
