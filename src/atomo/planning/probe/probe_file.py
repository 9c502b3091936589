"""The JSON file of a probe: written atomically, and checked completely when it is read."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import torch

from atomo.config.comm_types import name_of_stored, stored_name
from atomo.core.safe_read import create_plain, read_whole
from atomo.errors import DataError
from atomo.planning import Costs, HostModel, Link, Profile, Scenario
from atomo.planning.costs import Cost
from atomo.planning.probe.codec_costs import cost_numbers

__all__ = ["Probe", "ProbeSubject", "costs_from", "read_probe", "write_probe"]

VERSION: Final = 1
MOST_ENTRIES: Final = 2**40
UNREADABLE: Final = (
    ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RuntimeError, MemoryError
)  # fmt: skip
NO_LINK: Final = Link(1e12, 0.0)  # of a single rank


@final
@dataclass(frozen=True)
class ProbeSubject:
    """The job and the hosts of a probe; the probe is valid for no others."""

    hosts: tuple[str, ...]
    """Host names by rank."""
    network: str
    dataset: str
    image_size: int
    batch_size: int
    threads: int


@final
@dataclass(frozen=True)
class Probe:
    """All measurements that a prediction needs, for `atomo explain`, `--fusion auto` and `--code
    auto`.
    """

    profile: Profile
    slowing: float
    links: Mapping[str, Link]
    costs: tuple[tuple[str, Costs], ...]
    """Costs of codecs, each with its reduction."""

    def scenario(self, workers: int, link: Link = NO_LINK) -> Scenario:
        """Builds the scenario of `workers` workers on hosts like those probed.

        Args:
            workers: of the job.
            link: stands for every link that was not measured.
        """
        return Scenario(self.profile, workers, link, HostModel(1.0, self.slowing), self.links)

    @property
    def numbers(self) -> tuple[float, ...]:
        """All measurements in a row: passes, links, costs."""
        p = self.profile
        passes = [p.forward_s, p.backward_s, p.update_s, self.slowing, *p.ready_s]
        links = [
            value
            for link in self.links.values()
            for value in (
                link.bytes_per_s,
                link.latency_s,
                link.burst_bytes,
                link.rested_bytes,
                *sum(link.shorter, ()),
            )
        ]
        costs = [value for _, costs in self.costs for value in cost_numbers(costs)]
        return (*passes, *links, *costs)


def write_probe(path: Path, subject: ProbeSubject, probe: Probe) -> None:
    """Writes a probe of a subject; the file appears whole or not at all.

    Raises:
        DataError: the file cannot be written.
    """
    profile = probe.profile
    document = {
        "version": VERSION,
        "subject": asdict(subject),
        "parameters": {name: [*tensor.shape] for name, tensor in profile.gradient.items()},
        "forward_s": profile.forward_s,
        "ready_s": profile.ready_s,
        "backward_s": profile.backward_s,
        "update_s": profile.update_s,
        "slowing": probe.slowing,
        "links": {stored_name(name): asdict(link) for name, link in probe.links.items()},
        "costs": [[reduction, asdict(costs)] for reduction, costs in probe.costs],
    }
    beside = path.with_name(f"{path.name}.new")
    try:
        with create_plain(beside) as file:
            file.write(json.dumps(document, indent=1).encode() + b"\n")
        beside.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error}") from error


def read_probe(path: Path) -> tuple[ProbeSubject, Probe]:
    """Reads a probe and its subject from a file.

    Raises:
        DataError: the file cannot be read, or `write_probe` did not write it; the message names the
            part that is wrong and says how to measure again.
    """
    try:
        return probe_from(json.loads(read_whole(path, linked=True)))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    except UNREADABLE as error:
        reason = (f"no {error}" if isinstance(error, KeyError) else str(error))[:200]
        raise DataError(f"{path}: is no probe of this version ({reason}); delete it") from error


def probe_from(document: Any) -> tuple[ProbeSubject, Probe]:
    """Parses a probe. Raises ValueError, TypeError or KeyError for anything else."""
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']!r}, not {VERSION}")
    subject = subject_from(document["subject"])
    shapes = {str(name): shape_from(shape) for name, shape in document["parameters"].items()}
    gradient = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    tensors = len(gradient)
    ready = tuple(number(moment, "ready_s") for moment in document["ready_s"])
    if not tensors or len(ready) != tensors:
        raise ValueError(f"{len(ready)} times of {tensors} gradients")
    seconds = [number(document[name], name) for name in ("forward_s", "backward_s", "update_s")]
    profile = Profile(seconds[0], ready, seconds[1], gradient, seconds[2])
    links = {name_of_stored(str(name)): link_from(link) for name, link in document["links"].items()}
    costs = tuple((str(name), costs_from(costs, tensors)) for name, costs in document["costs"])
    return subject, Probe(profile, number(document["slowing"], "slowing", 1.0), links, costs)


def subject_from(record: Any) -> ProbeSubject:
    """Parses a subject. Raises ValueError, TypeError or KeyError for anything else."""
    names = [record["network"], record["dataset"], *record["hosts"]]
    sizes = [record[name] for name in ("image_size", "batch_size", "threads")]
    if not all(type(name) is str for name in names) or not all(type(size) is int for size in sizes):
        raise ValueError(f"its subject is {str(record)[:100]}")
    return ProbeSubject(tuple(names[2:]), *names[:2], *sizes)


def costs_from(record: Any, tensors: int) -> Costs:
    """Parses the costs of a number of tensors, as `asdict` writes them.

    Raises:
        ValueError, TypeError, KeyError: `record` is no record of costs.
    """
    each = tuple(cost_from(cost) for cost in record["each"])
    if len(each) != tensors:
        raise ValueError(f"costs of {len(each)} tensors, not of {tensors}")
    rounds = number(record["rounds"], "rounds", 1000.0)
    message = cost_from(record["message"])
    holds, half = (record[name] is True for name in ("holds", "half"))
    return Costs(str(record["spec"]), each, message, int(rounds), holds, half)


def cost_from(record: Any) -> Cost:
    names = "encode_s", "decode_s", "sent_bytes"
    return Cost(*(number(record[name], name) for name in names))


def link_from(record: Any) -> Link:
    speed = number(record["bytes_per_s"], "bytes_per_s")
    if not speed:
        raise ValueError("a link of no bandwidth")
    latency_s, burst = (number(record[name], name) for name in ("latency_s", "burst_bytes"))
    shorter = tuple(
        (number(size, "a message's size"), number(rate, "its bandwidth"))
        for size, rate in record.get("shorter", ())  # not in older files
    )
    if not all(rate for _, rate in shorter) or [*shorter] != sorted(shorter):
        raise ValueError(f"bandwidths by size are {shorter!r}")
    rested = number(record.get("rested_bytes", 0.0), "rested_bytes")  # not in older files
    return Link(speed, latency_s, burst, shorter, rested)


def shape_from(sides: Any) -> list[int]:
    shape = [*sides]
    if (
        not all(type(side) is int and side >= 0 for side in shape)
        or math.prod(shape) > MOST_ENTRIES
    ):
        raise ValueError(f"a parameter of the shape {shape}")
    return shape


def number(value: Any, name: str, maximum: float = 1e18) -> float:
    """Returns a number from 0 to `maximum`. Raises ValueError for anything else."""
    if type(value) not in (int, float) or not 0 <= value <= maximum:
        raise ValueError(f"{name} is {value!r}: give a number from 0 to {maximum:g}")
    return float(value)
