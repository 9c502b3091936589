"""The frames of the elastic protocol: control frames, progress and verdicts."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from atomo.codecs import Field
from atomo.errors import FrameError
from atomo.exchange.elastic.progress import RankProgress, Reports, Verdict
from atomo.exchange.report import Report
from atomo.exchange.state import read_state
from atomo.wire import Bytes, Compression, Header, Kind, pack, read_header, unpack

__all__ = [
    "control_frame",
    "progress_frame",
    "read_progress",
    "read_state_of",
    "read_verdict",
    "verdict_frame",
]

RAW: Final = Compression(codec="none")
NUMBERS: Final = Report.field().max_shape[0]  # in a report


def control_frame(kind: Kind, epoch: int, rank: int) -> Bytes:
    """Returns a frame that carries only its kind and an epoch."""
    return pack(Header(kind, epoch, rank + 1), [], RAW)


def progress_frame(standing: RankProgress, epoch: int, rank: int) -> Bytes:
    """Returns the frame of a rank's progress at the end of an epoch."""
    sections = [torch.tensor([standing.done]), *columns(standing.reports)]
    return pack(Header(Kind.STANDING, epoch, rank + 1), sections, RAW)


def read_progress(frame: Bytes, ranks: int) -> RankProgress:
    """Reads a frame of `progress_frame`.

    Raises:
        FrameError: the frame does not fit a job of so many ranks.
    """
    done, *sections = unpack(frame, [Field(torch.int64, (1,)), *fields(ranks)])
    return RankProgress(number(done), reports(sections, ranks))


def verdict_frame(verdict: Verdict, epoch: int) -> Bytes:
    """Returns the frame of a verdict, which holds from this epoch on."""
    sections = [
        torch.tensor([verdict.step]),
        *columns(verdict.reports),
        torch.tensor(verdict.members, dtype=torch.int64),
        torch.tensor([verdict.first_step]),
        torch.tensor(verdict.waiting, dtype=torch.int64),
    ]
    return pack(Header(Kind.VERDICT, epoch), sections, RAW)


def read_verdict(frame: Bytes, ranks: int) -> Verdict:
    """Reads a frame of `verdict_frame`.

    Raises:
        FrameError: the frame does not fit a job of so many ranks.
    """
    scalar, rank_list = Field(torch.int64, (1,)), Field(torch.int64, (ranks,))
    layout = [scalar, *fields(ranks), rank_list, scalar, rank_list]
    step, *sections, members, first_step, waiting = unpack(frame, layout)
    return Verdict(
        number(step),
        reports(sections, ranks),
        checked(members, ranks),
        number(first_step),
        checked(waiting, ranks),
    )


def read_state_of(rank: int, frame: Bytes, step: int, label: str) -> dict[str, Tensor]:
    """Reads a rank's state after a step.

    Raises:
        FrameError: the frame is of another kind, rank or step.
    """
    if (header := read_header(frame)) != Header(Kind.STATE, step, rank + 1):
        raise FrameError(
            f"rank {rank} sent {header.kind.name} of step {header.step} where {label} of step "
            f"{step} was expected"
        )
    return read_state(frame)


def number(section: Tensor) -> int:
    """Returns a step number. Raises FrameError for any other section."""
    if len(section) != 1 or section[0] < 0:
        raise FrameError(f"{section.tolist()} where the number of a step is due")
    return int(section[0])


def columns(reports: Reports) -> tuple[Tensor, Tensor]:
    """Returns the ranks and their reports, one row a report."""
    rows = [reports[rank].tensor() for rank in sorted(reports)]
    table = torch.cat(rows) if rows else torch.empty(0, dtype=torch.float64)
    return torch.tensor(sorted(reports), dtype=torch.int64), table


def fields(ranks: int) -> tuple[Field, Field]:
    """Returns the layout of `columns`."""
    return Field(torch.int64, (ranks,)), Field(torch.float64, (ranks * NUMBERS,))


def reports(sections: Sequence[Tensor], ranks: int) -> dict[int, Report]:
    """Reads `columns`. Raises FrameError if they do not fit."""
    names, table = checked(sections[0], ranks), sections[1]
    if len(table) != len(names) * NUMBERS:
        raise FrameError(f"{len(table)} numbers in the reports of {len(names)} ranks")
    rows = table.view(len(names), NUMBERS)
    return {name: Report.of(row) for name, row in zip(names, rows, strict=True)}


def checked(section: Tensor, ranks: int) -> tuple[int, ...]:
    """Returns increasing ranks. Raises FrameError if they do not increase."""
    members = section.tolist()
    if members != sorted({*members} & {*range(ranks)}):
        raise FrameError(f"ranks {members}; ascending ranks in 0..{ranks - 1} are due")
    return tuple(members)
