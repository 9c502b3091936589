"""`atomo explain`: what a step would take with each codec and communicator, before it is run."""

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from atomo.allocator import keep_freed_memory
from atomo.arguments import flag, option, parse
from atomo.bounds import ANY, COUNT, IMAGES, PIXELS, THREADS, Bound, check
from atomo.codecs import Law, make_codec
from atomo.data import epoch_seed
from atomo.launch.text import bytes_text
from atomo.planning import (
    Costs,
    Link,
    Machine,
    Profile,
    Setting,
    measure_costs,
    measure_passes,
)
from atomo.planning.comparison import (
    DENSE,
    OTHER_SIZES,
    Compared,
    compared,
    compresses,
    fastest_ways,
)
from atomo.planning.curves import draw
from atomo.plotting import pyplot_for
from atomo.quantities import bits_per_second, seconds, speed_text
from atomo.randomness import derive
from atomo.tasks import task_of

__all__ = ["Compared", "ExplainOptions", "main"]

DESCRIPTION: Final = """\
Measures a model's passes and codecs on this machine, and predicts what a step takes among several
over links as described: with each codec and communicator, beside dense gradients as float32 and
bf16, and for 8, 64 and 1024 workers. Nothing is trained, and no link is used.

  atomo explain --network ResNet50 --workers 16 --bandwidth 1gbit --latency 50us"""
CODES: Final = (
    "topk(ratio=0.01)", "dgc(ratio=0.001)", "svd(rank=3)", "qsgd", "efsignsgd",
)  # fmt: skip
BOUNDS: Final[Mapping[str, Bound]] = {
    "image_size": PIXELS,
    "batch_size": IMAGES,
    "workers": Bound(1, 1_000_000, "somebody must train", "no job has so many"),
    "threads": replace(THREADS, least=1),
    "cores": ANY,
    "processes_per_host": Bound(1, 4096, "a worker is a process", "no host has so many"),
    "repetitions": COUNT,
}


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """The options of `atomo explain`."""

    network: str = option("ResNet18", "whose steps to predict")
    dataset: str = option("Noise", "on which samples; Noise: images of --image-size")
    data_dir: str = option("data", "where the data sets lie")
    image_size: int = option(0, "pixels a side of Noise; 0: its own 224")
    batch_size: int = option(32, "samples per worker and step")
    workers: int = option(8, "that train, each on a host of its own")
    bandwidth: str = option("1gbit", "of each host's link, both ways: 100mbit, 1gbit, 25gbit")
    latency: str = option("50us", "of a message between hosts, one way: 50us, 1ms")
    code: str = option("", "one codec or several, separated by ';'; empty: a few")
    svd_rank: int = option(4, "of PowerSGD; 0: leave it out")
    threads: int = option(1, "compute threads of each process")
    processes_per_host: int = option(1, "that share the cores of a host")
    cores: int = option(0, "of a host; 0: as many as here")
    repetitions: int = option(3, "of each timing, of which the best counts")
    json: bool = option(False, "one JSON document: yes or no")
    png: str = option("", "file for curves over bandwidth; needs matplotlib")

    def __post_init__(self) -> None:
        check(self, BOUNDS, flag)

    @property
    def link(self) -> Link:
        """Of each host."""
        bits = bits_per_second(self.bandwidth, flag("bandwidth"))
        return Link(bits / 8, seconds(self.latency, flag("latency")))

    @property
    def machine(self) -> Machine:
        """Of each host, beside this one."""
        cores = self.cores or os.cpu_count() or 1
        computing = self.processes_per_host * self.threads
        spare = cores >= computing + self.processes_per_host
        return Machine(max(1.0, computing / cores), 0.0 if spare else 1.0)


def main(words: Sequence[str]) -> int:
    """Measures, predicts and prints."""
    options = parse(ExplainOptions, words, "explain", DESCRIPTION)
    if options.png:
        pyplot_for(options.png)
    link, machine = options.link, options.machine  # what is wrong with them is said first
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the ranks of a job do
    profile = profile_of(options)
    setting = Setting(profile, options.workers, link, machine)
    measured = [*measurements(options, profile)]
    found = sorted(compared(setting, measured), key=lambda one: one.step_s)
    if options.json:
        sys.stdout.write(json.dumps(document(options, setting, found), indent=2) + "\n")
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(table(setting, found, options))
        sys.stdout.write(verdict(found, options))
    if options.png:
        draw(options.png, setting, fastest_ways(measured, found))
    return 0


def profile_of(options: ExplainOptions) -> Profile:
    """The passes of one worker, on this machine.

    Raises:
        ConfigError: a name is unknown.
        DataError: the data set is missing.
    """
    work = task_of(options.dataset).open(
        options.dataset, Path(options.data_dir), options.image_size or None
    )
    torch.manual_seed(derive(1, "weights"))
    model = work.build(options.network).train()
    chosen = torch.arange(options.batch_size) % len(work.train)
    batch = work.train.batch(chosen, epoch_seed(1, 0))
    return measure_passes(model, work.objective, batch, options.repetitions)


def measurements(options: ExplainOptions, profile: Profile) -> Iterator[tuple[Costs, str]]:
    """The costs of each codec, and a communicator that it goes with."""
    specs = [spec for spec in options.code.split(";") if spec.strip()] or CODES
    codecs = [make_codec(spec) for spec in (*DENSE, *specs)]
    for codec in {str(codec): codec for codec in codecs}.values():
        gathered = measure_costs(codec, "Allgather", profile.gradient, options.repetitions)
        yield gathered, "Bcast"
        if str(codec) not in DENSE:  # it sums, in a fraction of the bytes
            yield gathered, "Allgather"
        if Law.SUMMABLE in codec.laws:
            summed = measure_costs(codec, "Allreduce", profile.gradient, options.repetitions)
            yield summed, "Allreduce"
    if options.svd_rank:
        low_rank = make_codec(f"svd(rank={options.svd_rank})")
        for name in ("PowerSGD", "ACPSGD"):
            costs = measure_costs(low_rank, name, profile.gradient, options.repetitions)
            yield costs, name


def document(
    options: ExplainOptions, setting: Setting, found: Sequence[Compared]
) -> dict[str, Any]:
    """Everything, for programs. What pays everywhere has null as its bound."""
    rows = [asdict(one) for one in found]
    for row in rows:
        row["pays_below"] = None if math.isinf(row["pays_below"]) else row["pays_below"]
    return {
        "options": asdict(options),
        "parameters": sum(setting.profile.sizes) // 4,
        "compute_s": setting.compute_s,
        "compress": compresses(found),
        "steps": rows,
    }


def table(setting: Setting, found: Sequence[Compared], options: ExplainOptions) -> Table:
    """One row a codec and communicator, the fastest first."""
    entries = sum(setting.profile.sizes) // 4
    title = (
        f"{options.network}, {entries:,} parameters: a step's passes take "
        f"{1e3 * setting.compute_s:.0f} ms; {options.workers} workers, {options.bandwidth}, "
        f"{options.latency}"
    )
    out = Table(title=title)
    for column in (
        "--code", "--comm-type", "ms", "link", "codec", "sent", "--fusion",
        "to bf16", "pays below", *(f"ms: {n}" for n in OTHER_SIZES),
    ):  # fmt: skip
        out.add_column(column, justify="left" if column.startswith("--") else "right")
    for one in found:
        out.add_row(
            one.code,
            one.communicator,
            f"{1e3 * one.step_s:.1f}",
            f"{1e3 * one.link_s:.1f}",
            f"{1e3 * one.codec_s:.1f}",
            bytes_text(one.sent_bytes),
            one.fusion,
            f"{one.to_base:.2f}x",
            speed_text(one.pays_below),
            *(f"{1e3 * seconds_:.0f}" for seconds_ in one.steps_s.values()),
        )
    return out


def verdict(found: Sequence[Compared], options: ExplainOptions) -> str:
    """The answer in a sentence or two."""
    first = found[0]
    how = f"--comm-type {first.communicator} --code '{first.code}' --fusion {first.fusion}"
    if not compresses(found):
        dense = next(one for one in found if one.code in DENSE)
        plain = f"--comm-type {dense.communicator} --code {dense.code}"
        return f"Do not compress: nothing gains 2 % on {plain} --fusion {dense.fusion}.\n"
    rest = speed_text(first.pays_below)
    gain = f"{first.to_base:.2f} times as fast as bf16 over Allreduce"
    bound = "on links of any speed" if rest == "any" else f"on links below {rest}"
    return (
        f"Fastest: {how}, {gain}; it pays {bound}.\n"
        "What a codec loses is not in these figures: docs/convergence.md says which keep the "
        "accuracy.\n"
    )
