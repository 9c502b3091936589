"""The plans of a run in one file of its folder: the one that serves now, and those before it.

    {..., "since": 151, "earlier": [{..., "since": 1}]}

A plan is measured at the start of a run and perhaps again later. Who continues from a checkpoint
has the plan that served there.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from atomo.config import Settings
from atomo.plain_file import read_whole
from atomo.training.data_files import last_whole
from atomo.training.run_folder import decoded

__all__ = ["continued", "in_force", "moved", "with_earlier"]

SINCE: Final = "since"  # the first step that it serves in
EARLIER: Final = "earlier"  # plans, the latest first


def continued(settings: Settings) -> tuple[Path, int] | None:
    """The folder that a run continues in or from, and the step of its last whole checkpoint, 0
    where there is none; None where it starts anew whatever lies there.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    if settings.resume == "never":
        return None
    folder = Path(settings.train_dir if settings.resume == "auto" else settings.resume)
    return folder, (last_whole(folder) or 0 if folder.is_dir() else 0)


def in_force(path: Path, step: int) -> dict[str, Any] | None:
    """The record of a file that served in the step after `step`; None: all are of later ones.

    Raises:
        OSError: the file cannot be read.
        ValueError: what is in it is no record.
    """
    for record in records(decoded(read_whole(path))):
        if since(record) <= step + 1:
            return {name: value for name, value in record.items() if name != EARLIER}
    return None


def with_earlier(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with those before it that a file has, if there is one that can be read."""
    try:
        before = [one for one in records(decoded(read_whole(path))) if since(one) < since(record)]
    except (OSError, ValueError):
        before = []
    plain = [{name: value for name, value in one.items() if name != EARLIER} for one in before]
    return {**record, **({EARLIER: plain} if plain else {})}


def moved(was: tuple[str, ...], now: tuple[str, ...]) -> str:
    """In words, that a plan was measured on other hosts than those of a job, by rank; empty: it was
    not, or nobody knows. Which rank is where makes no difference, but for the first.
    """
    if not was or not now or (was[0], Counter(was)) == (now[0], Counter(now)):
        return ""
    return f"it was measured on {listed(was)}, and the ranks are on {listed(now)} now"


def listed(hosts: tuple[str, ...]) -> str:
    """Each host with its ranks."""
    return ", ".join(f"{name} ({many})" for name, many in Counter(hosts).items())


def records(values: object) -> list[Mapping[str, Any]]:
    """The latest first. Raises ValueError."""
    if not isinstance(values, Mapping) or not isinstance(values.get(EARLIER, []), list):
        raise ValueError("it is no record of a plan")
    found = [values, *values.get(EARLIER, [])]
    if not all(isinstance(one, Mapping) for one in found):
        raise ValueError("an earlier plan is no record")
    return found


def since(record: Mapping[str, Any]) -> int:
    """Files of earlier versions have one plan, from the first step on. Raises ValueError."""
    found = record.get(SINCE, 1)
    if type(found) is not int or found < 1:
        raise ValueError(f"{SINCE} is {found!r}: the number of a step is from 1")
    return found
