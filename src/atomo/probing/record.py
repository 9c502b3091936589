"""What a probe found, as a file of JSON: written whole, and checked in all its parts when read."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import torch

from atomo.errors import DataError
from atomo.plain_file import created, read_whole
from atomo.planning import Costs, Link, Machine, Profile, Setting
from atomo.planning.costs import Cost
from atomo.probing.coding import numbers_of

__all__ = ["Probed", "Subject", "costs_from", "read_probe", "write_probe"]

VERSION: Final = 1
MOST_ENTRIES: Final = 2**40
UNREADABLE: Final = (
    ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RuntimeError, MemoryError
)  # fmt: skip
NO_LINK: Final = Link(1e12, 0.0)  # between no ranks


@final
@dataclass(frozen=True)
class Subject:
    """Whose steps were probed, and where: of others a probe says nothing."""

    hosts: tuple[str, ...]
    """By rank."""
    network: str
    dataset: str
    image_size: int
    batch_size: int
    threads: int


@final
@dataclass(frozen=True)
class Probed:
    """All that a prediction takes; `atomo explain`, `--fusion auto` and `--code auto` go by it."""

    profile: Profile
    slowing: float
    links: Mapping[str, Link]
    costs: tuple[tuple[str, Costs], ...]
    """Each with the reduction that it is of."""

    def setting(self, workers: int, link: Link = NO_LINK) -> Setting:
        """So many workers, on hosts like these.

        Args:
            workers: of the job.
            link: what was not measured.
        """
        return Setting(self.profile, workers, link, Machine(1.0, self.slowing), self.links)

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it in a row: passes, links, costs."""
        one = self.profile
        passes = [one.forward_s, one.backward_s, one.update_s, self.slowing, *one.ready_s]
        links = [
            number
            for link in self.links.values()
            for number in (
                link.bytes_per_s,
                link.latency_s,
                link.burst_bytes,
                link.rested_bytes,
                *sum(link.shorter, ()),
            )
        ]
        costs = [number for _, costs in self.costs for number in numbers_of(costs)]
        return (*passes, *links, *costs)


def write_probe(path: Path, subject: Subject, found: Probed) -> None:
    """Writes a probe of a subject; nobody ever reads a half of one.

    Raises:
        DataError: it cannot be written there.
    """
    profile = found.profile
    document = {
        "version": VERSION,
        "subject": asdict(subject),
        "parameters": {name: [*tensor.shape] for name, tensor in profile.gradient.items()},
        "forward_s": profile.forward_s,
        "ready_s": profile.ready_s,
        "backward_s": profile.backward_s,
        "update_s": profile.update_s,
        "slowing": found.slowing,
        "links": {name: asdict(link) for name, link in found.links.items()},
        "costs": [[reduction, asdict(costs)] for reduction, costs in found.costs],
    }
    beside = path.with_name(f"{path.name}.new")
    try:
        with created(beside) as file:
            file.write(json.dumps(document, indent=1).encode() + b"\n")
        beside.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error}") from error


def read_probe(path: Path) -> tuple[Subject, Probed]:
    """What a file says, and of what.

    Raises:
        DataError: it cannot be read, or is not what `write_probe` writes; the message says which
            part, and how to have it anew.
    """
    try:
        found = json.loads(read_whole(path, linked=True))
        return probed_from(found)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    except UNREADABLE as error:
        what = (f"no {error}" if isinstance(error, KeyError) else str(error))[:200]
        raise DataError(f"{path}: is no probe of this version ({what}); delete it") from error


def probed_from(found: Any) -> tuple[Subject, Probed]:
    """Raises ValueError, TypeError or KeyError for what is no probe."""
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']!r}, not {VERSION}")
    subject = subject_from(found["subject"])
    shapes = {str(name): shape_from(shape) for name, shape in found["parameters"].items()}
    gradient = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    tensors = len(gradient)
    ready = tuple(number(moment, "ready_s") for moment in found["ready_s"])
    if not tensors or len(ready) != tensors:
        raise ValueError(f"{len(ready)} times of {tensors} gradients")
    once = [number(found[name], name) for name in ("forward_s", "backward_s", "update_s")]
    profile = Profile(once[0], ready, once[1], gradient, once[2])
    links = {str(name): link_from(link) for name, link in found["links"].items()}
    costs = tuple((str(name), costs_from(one, tensors)) for name, one in found["costs"])
    return subject, Probed(profile, number(found["slowing"], "slowing", 1.0), links, costs)


def subject_from(found: Any) -> Subject:
    """Raises ValueError, TypeError or KeyError for what is none."""
    names = [found["network"], found["dataset"], *found["hosts"]]
    sizes = [found[name] for name in ("image_size", "batch_size", "threads")]
    if not all(type(name) is str for name in names) or not all(type(one) is int for one in sizes):
        raise ValueError(f"its subject is {str(found)[:100]}")
    return Subject(tuple(names[2:]), *names[:2], *sizes)


def costs_from(found: Any, tensors: int) -> Costs:
    """Costs of so many tensors, as `asdict` has them.

    Raises:
        ValueError, TypeError, KeyError: they are none.
    """
    each = tuple(cost_from(one) for one in found["each"])
    if len(each) != tensors:
        raise ValueError(f"costs of {len(each)} tensors, not of {tensors}")
    rounds = number(found["rounds"], "rounds", 1000.0)
    message = cost_from(found["message"])
    holds, half = (found[name] is True for name in ("holds", "half"))
    return Costs(str(found["spec"]), each, message, int(rounds), holds, half)


def cost_from(found: Any) -> Cost:
    names = "encode_s", "decode_s", "sent_bytes"
    return Cost(*(number(found[name], name) for name in names))


def link_from(found: Any) -> Link:
    speed = number(found["bytes_per_s"], "bytes_per_s")
    if not speed:
        raise ValueError("a link of no bandwidth")
    latency_s, burst = (number(found[name], name) for name in ("latency_s", "burst_bytes"))
    shorter = tuple(
        (number(size, "a message's size"), number(seen, "its bandwidth"))
        for size, seen in found.get("shorter", ())  # probes of before have none
    )
    if not all(seen for _, seen in shorter) or [*shorter] != sorted(shorter):
        raise ValueError(f"bandwidths by size are {shorter!r}")
    rested = number(found.get("rested_bytes", 0.0), "rested_bytes")  # nor have they this
    return Link(speed, latency_s, burst, shorter, rested)


def shape_from(found: Any) -> list[int]:
    shape = [*found]
    if (
        not all(type(side) is int and side >= 0 for side in shape)
        or math.prod(shape) > MOST_ENTRIES
    ):
        raise ValueError(f"a parameter of the shape {shape}")
    return shape


def number(found: Any, name: str, most: float = 1e18) -> float:
    """A number from 0."""
    if type(found) not in (int, float) or not 0 <= found <= most:
        raise ValueError(f"{name} is {found!r}: give a number from 0 to {most:g}")
    return float(found)
