"""Frames of a training step, and roles that read arbitrary bytes in their place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Size

from atomo.codecs import make_codec
from atomo.exchange import Client, Compressor, Report
from atomo.exchange.compressor import add_frame
from atomo.exchange.scales import read_scales
from atomo.exchange.state import read_state, state_tensor
from atomo.fusion import Bucket, plan
from atomo.memory import NoMemory
from atomo.options.grouping import ONE
from atomo.transports import LocalTransport, network
from atomo.wire import Compression, Header, Kind, pack, read_header, unpack

__all__ = ["Roles", "make_roles"]

PARAMETERS = [("conv", Size((6, 4, 3, 3))), ("fc", Size((9, 20))), ("bias", Size((9,)))]
PATIENCE_S = 5.0
SCALES = 2
ORDERS = (Kind.WEIGHTS, Kind.STATE, Kind.SAVE, Kind.STOP)


@dataclass(frozen=True)
class Roles:
    """A master that expects these buckets, and a worker that waits for commands."""

    buckets: Sequence[Bucket]
    worker: Client
    wire: LocalTransport

    def take(self, data: bytes) -> str:
        """Passes the bytes to their receiver; returns a problem, or an empty string.

        Raises:
            FrameError: the receiver refused the bytes.
        """
        frame = np.frombuffer(data, np.uint8)
        match read_header(frame).kind:
            case Kind.GRADIENT:
                return self.added(frame)
            case Kind.REPORT:
                return "" if Report.of(unpack(frame, [Report.field()])[0]) else "no report"
            case Kind.SCALES:
                scales = read_scales(frame, SCALES, 0)
                return "" if all(map(math.isfinite, scales)) else f"scales {scales}"
            case Kind.STATE:
                read_state(frame)
        return self.ordered(frame)

    def added(self, frame: np.ndarray) -> str:
        """Decodes a gradient as the master does: for the bucket with the same layout, if any."""
        layout = read_header(frame).layout_hash
        for bucket in self.buckets:
            if bucket.layout_hash == layout:
                add_frame(bucket, frame, torch.zeros(bucket.size), 0.5)
        return ""

    def ordered(self, frame: np.ndarray) -> str:
        """Sends a command to the worker; returns a problem, or an empty string."""
        self.wire.send(1, frame, "an order")
        order = self.worker.pull()
        entries = sum(bucket.size for bucket in self.buckets)
        if order.kind is Kind.WEIGHTS and (order.weights is None or len(order.weights) != entries):
            return "weights of another size"
        return "" if order.kind in ORDERS else f"took {order}"


def make_roles(specs: Sequence[str]) -> tuple[Roles, list[bytes]]:
    """Returns both ends of a link, and valid frames of every kind."""
    plans = [plan(PARAMETERS, make_codec(spec), ONE) for spec in specs]
    buckets = [bucket for planned in plans for bucket in planned]
    wires, generator = network(2), Generator().manual_seed(0)
    frames = []
    for how in (Compression(codec="none"), Compression()):
        compressor = Compressor(NoMemory(), how, 1, seed=0)
        for bucket in buckets:
            flat = torch.randn(bucket.size, generator=generator)
            frames.append(compressor.compress(bucket, flat, 1).tobytes())
    entries = sum(bucket.size for bucket in buckets)
    state = state_tensor({"memory/fc": torch.ones(9, 20), "buffer/steps": torch.tensor(3)})
    sections = {
        Kind.WEIGHTS: [torch.ones(entries)], Kind.REPORT: [Report(*range(7)).tensor()],
        Kind.SCALES: [torch.ones(SCALES, dtype=torch.float64)], Kind.STATE: [state],
        Kind.SAVE: [], Kind.STOP: [],
    }  # fmt: skip
    raw = Compression(codec="none")
    frames += [pack(Header(kind, 1, 1), parts, raw).tobytes() for kind, parts in sections.items()]
    worker = Client(wires[1], entries, Compressor(NoMemory(), raw, 1, seed=0), PATIENCE_S)
    return Roles(buckets, worker, wires[0]), frames
