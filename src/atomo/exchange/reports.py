"""Reports and other short messages of a step, which ranks exchange beside gradients."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from torch import Tensor

from atomo.errors import FrameError
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.report import Report
from atomo.wire import Bytes, Compression, Header, Kind, pack, read_header, unpack

__all__ = ["gather", "report_frame", "reports_in", "tell"]

RAW: Final = Compression(codec="none")
REPORT: Final = "the report"


def tell(collective: Collective, step: int, report: Report) -> dict[int, Report]:
    """Gathers the reports of all ranks, in their order."""
    frame = report_frame(step, collective.rank, report)
    frames = collective.gather(frame, f"{REPORT} of step {step}")
    return dict(reports_in(frames, step, range(collective.size)))


def report_frame(step: int, rank: int, report: Report) -> Bytes:
    """Packs the report of a rank into a frame."""
    return pack(Header(Kind.REPORT, step, rank + 1), [report.tensor()], RAW)


def reports_in(
    frames: Iterable[Bytes], step: int, ranks: Sequence[int]
) -> Iterator[tuple[int, Report]]:
    """Reads the reports in the frames of these ranks, one after the other.

    Raises:
        FrameError: a rank sent something else.
    """
    for rank, frame in zip(ranks, frames, strict=True):
        check(frame, Header(Kind.REPORT, step, rank + 1), rank, REPORT)
        yield rank, Report.of(unpack(frame, [Report.field()])[0])


def gather(
    collective: Collective, kind: Kind, step: int, section: Tensor, label: str
) -> list[Bytes]:
    """Gathers a frame of every rank, of that step.

    Raises:
        FrameError: a rank sent something else.
    """
    frame = pack(Header(kind, step, collective.rank + 1), [section], RAW)
    frames = list(collective.gather(frame, f"{label} of step {step}"))
    for rank, frame in enumerate(frames):
        check(frame, Header(kind, step, rank + 1), rank, label)
    return frames


def check(frame: Bytes, expected: Header, rank: int, label: str) -> None:
    """Raises FrameError where a frame of a rank is another than was expected."""
    header = read_header(frame)
    if header != expected:
        raise FrameError(
            f"rank {rank} sent {header.kind.name} of step {header.step} where {label} of "
            f"step {expected.step} was expected"
        )
