"""Frames that bring a worker to the master's weights, and their checks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
import xxhash
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Field
from atomo.errors import FrameError
from atomo.exchange.state import LIMIT, load_state, state_tensor
from atomo.wire import Bytes, Compression, Flag, Header, Kind, pack, read_header, unpack

__all__ = [
    "RAW",
    "Pace",
    "begin_frame",
    "hash_frame",
    "hash_order",
    "members_frame",
    "pace_frame",
    "read_hash",
    "read_members",
    "read_pace",
    "read_snapshot",
    "read_update",
    "read_weights",
    "snapshot_frame",
    "update_frame",
    "weights_frame",
]

RAW = Compression(codec="none")
DIGEST = 8  # bytes


def weights_frame(step: int, weights: Float[Tensor, " n"], flag: Flag = Flag.NONE) -> Bytes:
    """Returns a command to compute the gradient of a step at the weights in the frame."""
    return pack(Header(Kind.WEIGHTS, step, flags=flag), [weights], RAW)


def read_weights(
    frame: Bytes, entries: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, " n"]:
    """Returns the weights of a frame, stored as `dtype`, as float32.

    Raises:
        FrameError: the weights are of another model.
    """
    return whole(unpack(frame, [Field(dtype, (entries,))])[0].float(), entries)


def whole(weights: Float[Tensor, " n"], entries: int) -> Float[Tensor, " n"]:
    """Returns the weights of a whole model: a field alone accepts fewer entries."""
    if len(weights) != entries:
        raise FrameError(f"{len(weights)} weights came; the model has {entries}")
    return weights


def begin_frame(step: int, flag: Flag) -> Bytes:
    """Returns a command to compute the gradient of a step at the worker's current weights."""
    return pack(Header(Kind.BEGIN, step, flags=flag), [], RAW)


def members_frame(step: int, workers: Sequence[int]) -> Bytes:
    """Returns a frame with the workers, in rank order, that share the samples from a step on."""
    return pack(Header(Kind.MEMBERS, step), [torch.tensor(workers, dtype=torch.int32)], RAW)


def read_members(frame: Bytes, rank: int, workers: int) -> tuple[int, ...]:
    """Returns the workers of a MEMBERS frame.

    Raises:
        FrameError: the frame holds no ascending ranks of 1..`workers`, or not `rank`.
    """
    ranks = unpack(frame, [Field(torch.int32, (workers,))])[0].tolist()
    if rank not in ranks or ranks != sorted({*ranks} & {*range(1, workers + 1)}):
        raise FrameError(
            f"rank {rank} got the members {ranks}; ascending ranks of 1..{workers} with it are due"
        )
    return tuple(ranks)


@final
@dataclass(frozen=True)
class Pace:
    """A round of local steps that a master determined, and the division of its batches."""

    first: int
    last: int
    seconds: tuple[float, ...]
    """Seconds of a local step of each worker of the round, in rank order."""


def pace_frame(number: int, pace: Pace) -> Bytes:
    """Returns a frame with the steps of the round with this number."""
    steps = torch.tensor([pace.first, pace.last])
    seconds = torch.tensor(pace.seconds, dtype=torch.float64)
    return pack(Header(Kind.PACE, number), [steps, seconds], RAW)


def read_pace(frame: Bytes, workers: int) -> Pace:
    """Returns the round of a PACE frame.

    Raises:
        FrameError: the frame holds no round, or seconds that no clock measures.
    """
    fields = [Field(torch.int64, (2,)), Field(torch.float64, (workers,))]
    steps, seconds = (section.tolist() for section in unpack(frame, fields))
    if len(steps) != len(fields) or not 1 <= steps[0] <= steps[1]:
        raise FrameError(f"a round of the steps {steps}; its first and its last step are due")
    if not seconds or not all(0 <= each < math.inf for each in seconds):
        raise FrameError(f"a round with local steps of {seconds} seconds; finite ones are due")
    return Pace(steps[0], steps[1], tuple(seconds))


def update_frame(
    step: int, counted: Sequence[int], factor: float, shares: Sequence[float] = ()
) -> Bytes:
    """Returns a command to repeat a step with the gradients of the counted workers.

    Args:
        step: number of the step.
        counted: workers in the sum, in rank order.
        factor: on the learning rate.
        shares: weight of each gradient, or one weight for all; empty: as at the start of the run.
    """
    sections = [
        torch.tensor([factor, *shares], dtype=torch.float64),
        torch.tensor(counted, dtype=torch.int32),
    ]
    return pack(Header(Kind.UPDATE, step), sections, RAW)


def read_update(frame: Bytes, workers: int) -> tuple[list[int], float, list[float]]:
    """Returns the counted workers in rank order, the factor on the learning rate, and the shares if
    they changed: one for all, or one for each gradient.

    Raises:
        FrameError: the frame holds no ascending ranks of 1..`workers`, or factors outside (0, 1].
    """
    fields = [Field(torch.float64, (1 + workers,)), Field(torch.int32, (workers,))]
    factors, ranks = (section.tolist() for section in unpack(frame, fields))
    if len(factors) not in (1, 2, 1 + len(ranks)) or not all(0 < factor <= 1 for factor in factors):
        raise FrameError(f"an update with factors {factors}; one above 0 and at most 1 is due")
    if not ranks or ranks != sorted({*ranks} & {*range(1, workers + 1)}):
        raise FrameError(f"an update of the workers {ranks}; ranks in 1..{workers}, in order")
    return ranks, factors[0], factors[1:]


def snapshot_frame(
    version: int, weights: Float[Tensor, " n"], state: Mapping[str, Tensor]
) -> Bytes:
    """Returns a frame with the weights and the optimizer state of a version."""
    return pack(Header(Kind.SNAPSHOT, version), [weights, state_tensor(state)], RAW)


def read_snapshot(frame: Bytes, entries: int) -> tuple[Float[Tensor, " n"], dict[str, Tensor]]:
    """Returns the weights and the state of the optimizer.

    Raises:
        FrameError: the weights are of another model, or the state is damaged.
    """
    fields = [Field(torch.float32, (entries,)), Field(torch.uint8, (LIMIT,))]
    weights, state = unpack(frame, fields)
    return whole(weights, entries), load_state(state)


def digest(weights: Float[Tensor, " n"]) -> bytes:
    """Returns the hash of weights on the CPU: xxh3-64 of their bytes."""
    return xxhash.xxh3_64_digest(weights.detach().numpy().data)


def hash_order(version: int) -> Bytes:
    """Returns a query for the hash of the weights of a version."""
    return pack(Header(Kind.HASH, version), [], RAW)


def hash_frame(version: int, worker: int, weights: Float[Tensor, " n"]) -> Bytes:
    """Returns the answer to a hash query."""
    section = torch.frombuffer(bytearray(digest(weights)), dtype=torch.uint8)
    return pack(Header(Kind.HASH, version, worker), [section], RAW)


def read_hash(frame: Bytes) -> tuple[int, bytes]:
    """Returns version and hash of an answer.

    Raises:
        FrameError: the frame holds no hash.
    """
    digest_bytes = bytes(unpack(frame, [Field(torch.uint8, (DIGEST,))])[0].tolist())
    if len(digest_bytes) != DIGEST:
        raise FrameError(f"a hash of {len(digest_bytes)} bytes; it has {DIGEST}")
    return read_header(frame).step, digest_bytes
