"""Checks of a worker's frame before the master accepts it."""

from collections.abc import Sequence
from typing import Final

from atomo.errors import FrameError, FrameFault
from atomo.fusion import Bucket
from atomo.wire import Header, Kind

__all__ = ["check_frame", "check_state", "fits"]

FROM_WORKERS: Final = (Kind.GRADIENT, Kind.SCALES, Kind.REPORT)


def check_frame(
    header: Header,
    source: int,
    due_step: int | None,
    buckets: Sequence[Bucket],
    *,
    takes_states: bool = False,
) -> None:
    """Raises FrameError for an unexpected frame.

    Args:
        header: of the frame.
        source: rank of the sender.
        due_step: step that the worker owes; None if it owes none.
        buckets: of that step; empty for a late gradient, which is never decoded and may be of the
            previous codec.
        takes_states: True if a worker may send its state in the middle of a round.
    """
    is_state = takes_states and header.kind is Kind.STATE
    if not (is_state or header.kind in FROM_WORKERS) or header.worker != source:
        raise FrameError(
            f"rank {source} sent a {header.kind.name} of worker {header.worker}", FrameFault.STRANGE
        )
    if header.step != due_step:
        raise FrameError(
            f"worker {source} sent step {header.step}; {due_step} is due", FrameFault.STALE
        )
    if header.kind is Kind.GRADIENT and buckets and not fits(header, buckets):
        raise FrameError(
            f"worker {source} sent a bucket {header.bucket} of another layout: "
            "do all hosts run the same version with the same options?",
            FrameFault.STRANGE,
        )


def check_state(header: Header, source: int, expected: Sequence[int]) -> None:
    """Raises FrameError for a frame that is not the state of a worker that was asked for it."""
    if header.kind is not Kind.STATE or header.worker != source or source not in expected:
        raise FrameError(
            f"rank {source} sent a {header.kind.name} of worker {header.worker}; the states of "
            f"worker {[*expected]} are due",
            FrameFault.STRANGE,
        )


def fits(header: Header, buckets: Sequence[Bucket]) -> bool:
    """True if a gradient is of one of these buckets."""
    return header.bucket < len(buckets) and header.layout_hash == buckets[header.bucket].layout_hash
