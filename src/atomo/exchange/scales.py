"""Agreement on scales: all workers encode with the largest scale that any worker proposes."""

from collections.abc import Collection, Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Field
from atomo.errors import FrameError, FrameFault
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.compressor import Compressor
from atomo.exchange.reports import gather
from atomo.wire import Bytes, Kind, read_header, unpack

__all__ = ["Scales", "agree_on_scales", "read_scales"]


def agree_on_scales(
    collective: Collective, compressor: Compressor, step: int, proposed: Mapping[str, float]
) -> None:
    """Has all ranks encode with the largest scale that any rank proposes, part by part.

    Args:
        collective: the collective of all ranks.
        compressor: the compressor of this rank.
        step: the number of the step.
        proposed: the proposals of this rank, by the first parameter of each part. All ranks name
            the same parameters, in one order.

    Raises:
        FrameError: a rank sent another message, or another number of scales.
    """
    section = torch.tensor([*proposed.values()], dtype=torch.float64)
    frames = gather(collective, Kind.SCALES, step, section, "the scales")
    proposals = [read_scales(frame, len(proposed)) for frame in frames]
    largest = map(max, zip(*proposals, strict=True))
    compressor.agree(dict(zip(proposed, largest, strict=True)))


def read_scales(frame: Bytes, *counts: int) -> list[float]:
    """Reads the scales in a frame. `counts` are the numbers of scales that are accepted.

    Raises:
        FrameError: the frame is of another kind, has another number of scales, or a scale that is
            negative or not finite.
    """
    kind = read_header(frame).kind
    if kind is not Kind.SCALES:
        raise FrameError(f"scales were expected, not a {kind.name}", FrameFault.STRANGE)
    scales = unpack(frame, [Field(torch.float64, (max(counts),))])[0]
    if len(scales) not in counts:
        raise FrameError(f"{len(scales)} scales came, and {max(counts)} were expected")
    if not bool((scales.isfinite() & (scales >= 0)).all()):
        raise FrameError(
            f"scales must be finite and not negative, got {scales.tolist()}", FrameFault.NUMBERS
        )
    values: list[float] = scales.tolist()
    return values


@final
class Scales:
    """The scales that workers request in one step. Late workers get the agreed scales."""

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._requested: set[int] = set()
        self._waiting: list[int] = []
        self._agreed: list[float] = []

    @property
    def section(self) -> Float[Tensor, " n"]:
        """The agreed scales, as a section of a frame."""
        return torch.tensor(self._agreed, dtype=torch.float64)

    def has_asked(self, worker: int) -> bool:
        """Returns True if a worker has made its request."""
        return worker in self._requested

    def ask(self, worker: int, scales: Sequence[float]) -> list[int]:
        """Records the request of a worker. Returns the workers that now get the agreed scales."""
        if self._needed:
            self._agreed = [*map(max, scales, self._agreed or scales)]
            self._needed -= 1
        self._requested.add(worker)
        self._waiting.append(worker)
        return self._answered()

    def lose(self, worker: int, remaining: Collection[int]) -> list[int]:
        """Stops waiting for a dead worker. Returns the workers that now get the agreed scales.

        Args:
            worker: its rank. Its request, if there is one, counts.
            remaining: the workers that may still make a request.
        """
        self._waiting = [other for other in self._waiting if other != worker]
        self._needed = min(self._needed, len({*remaining} - self._requested))
        return self._answered()

    def _answered(self) -> list[int]:
        """Returns the waiting workers, if the scales are agreed on; they wait no longer."""
        if self._needed:
            return []
        workers, self._waiting = self._waiting, []
        return workers
