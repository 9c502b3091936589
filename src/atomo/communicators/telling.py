"""What ranks tell each other beside gradients: few bytes, in a frame of each, of one step."""

from typing import Final

from torch import Tensor

from atomo.communicators.collective import Collective
from atomo.communicators.report import Report
from atomo.errors import FrameError
from atomo.wire import Bytes, Compression, Header, Kind, pack, read_header, unpack

__all__ = ["gather", "tell"]

RAW: Final = Compression(codec="none")


def tell(collective: Collective, step: int, report: Report) -> dict[int, Report]:
    """The reports of all ranks, in their order."""
    frames = gather(collective, Kind.REPORT, step, report.tensor(), "the report")
    return {
        rank: Report.of(unpack(frame, [Report.field()])[0]) for rank, frame in enumerate(frames)
    }


def gather(
    collective: Collective, kind: Kind, step: int, section: Tensor, what: str
) -> list[Bytes]:
    """A frame of every rank, of that step.

    Raises:
        FrameError: a rank sent something else.
    """
    frame = pack(Header(kind, step, collective.rank + 1), [section], RAW)
    frames = list(collective.gather(frame, f"{what} of step {step}"))
    for rank, one in enumerate(frames):
        header = read_header(one)
        if header != Header(kind, step, rank + 1):
            raise FrameError(
                f"rank {rank} sent {header.kind.name} of step {header.step} where {what} of "
                f"step {step} was expected"
            )
    return frames
