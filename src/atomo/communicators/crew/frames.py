"""The frames that ranks without a master say with where they stand, and what follows from it."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from atomo.codecs import Field
from atomo.communicators.crew.standing import Reports, Standing, Verdict
from atomo.communicators.report import Report
from atomo.communicators.state import read_state
from atomo.errors import FrameError
from atomo.wire import Bytes, Compression, Header, Kind, pack, read_header, unpack

__all__ = ["bare", "read_standing", "read_verdict", "standing_frame", "state_of", "verdict_frame"]

RAW: Final = Compression(codec="none")
NUMBERS: Final = Report.field().most[0]  # in a report


def bare(kind: Kind, epoch: int, rank: int) -> Bytes:
    """A frame that says no more than its kind and an epoch."""
    return pack(Header(kind, epoch, rank + 1), [], RAW)


def standing_frame(standing: Standing, epoch: int, rank: int) -> Bytes:
    """Where a rank stands when an epoch ends."""
    sections = [torch.tensor([standing.done]), *columns(standing.reports)]
    return pack(Header(Kind.STANDING, epoch, rank + 1), sections, RAW)


def read_standing(frame: Bytes, ranks: int) -> Standing:
    """The inverse of `standing_frame`.

    Raises:
        FrameError: it is none of a job of so many ranks.
    """
    done, *told = unpack(frame, [Field(torch.int64, (1,)), *fields(ranks)])
    return Standing(number(done), reports(told, ranks))


def verdict_frame(verdict: Verdict, epoch: int) -> Bytes:
    """What all who are left go by from this epoch on."""
    sections = [
        torch.tensor([verdict.step]),
        *columns(verdict.reports),
        torch.tensor(verdict.members, dtype=torch.int64),
        torch.tensor([verdict.edge]),
        torch.tensor(verdict.waiting, dtype=torch.int64),
    ]
    return pack(Header(Kind.VERDICT, epoch), sections, RAW)


def read_verdict(frame: Bytes, ranks: int) -> Verdict:
    """The inverse of `verdict_frame`.

    Raises:
        FrameError: it is none for a job of so many ranks.
    """
    one, some = Field(torch.int64, (1,)), Field(torch.int64, (ranks,))
    step, *told, members, edge, waiting = unpack(frame, [one, *fields(ranks), some, one, some])
    who = checked(members, ranks)
    return Verdict(number(step), reports(told, ranks), who, number(edge), checked(waiting, ranks))


def state_of(rank: int, frame: Bytes, step: int, what: str) -> dict[str, Tensor]:
    """What a rank had after a step.

    Raises:
        FrameError: this is no frame of that.
    """
    if (found := read_header(frame)) != Header(Kind.STATE, step, rank + 1):
        raise FrameError(
            f"rank {rank} sent {found.kind.name} of step {found.step} where {what} of step "
            f"{step} was expected"
        )
    return read_state(frame)


def number(told: Tensor) -> int:
    """A step. Raises FrameError unless it is one."""
    if len(told) != 1 or told[0] < 0:
        raise FrameError(f"{told.tolist()} where the number of a step is due")
    return int(told[0])


def columns(found: Reports) -> tuple[Tensor, Tensor]:
    """Whose reports they are, and the reports, one after the other."""
    rows = [found[rank].tensor() for rank in sorted(found)]
    table = torch.cat(rows) if rows else torch.empty(0, dtype=torch.float64)
    return torch.tensor(sorted(found), dtype=torch.int64), table


def fields(ranks: int) -> tuple[Field, Field]:
    """What `columns` may look like."""
    return Field(torch.int64, (ranks,)), Field(torch.float64, (ranks * NUMBERS,))


def reports(told: Sequence[Tensor], ranks: int) -> dict[int, Report]:
    """The inverse of `columns`. Raises FrameError where these do not fit."""
    names, table = checked(told[0], ranks), told[1]
    if len(table) != len(names) * NUMBERS:
        raise FrameError(f"{len(table)} numbers in the reports of {len(names)} ranks")
    rows = table.view(len(names), NUMBERS)
    return {name: Report.of(row) for name, row in zip(names, rows, strict=True)}


def checked(told: Tensor, ranks: int) -> tuple[int, ...]:
    """Ranks in order. Raises FrameError unless they are."""
    found = told.tolist()
    if found != sorted({*found} & {*range(ranks)}):
        raise FrameError(f"ranks {found}; different ones in 0..{ranks - 1} are due, in order")
    return tuple(found)
