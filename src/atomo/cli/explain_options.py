"""The options of `atomo explain`, and what follows from them."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from atomo.arguments import flag, option
from atomo.bounds import ANY, COUNT, IMAGES, PIXELS, THREADS, Bound, check
from atomo.codecs import Law, make_codec
from atomo.planning import Link, Machine
from atomo.planning.comparison import DENSE
from atomo.quantities import bits_per_second, seconds

__all__ = ["DESCRIPTION", "ExplainOptions", "communicators_of", "ways_of"]

DESCRIPTION: Final = """\
Measures a model's passes and codecs on this machine, and predicts what a step takes among several
over links as described: with each codec and communicator, beside dense gradients as float32 and
bf16, and for 8, 64 and 1024 workers. Nothing is trained, and no link is used.

  atomo explain --network ResNet50 --workers 16 --bandwidth 1gbit --latency 50us

With --probe FILE a short job of --workers processes measures all of it on its own hosts and links,
and writes the file; where that is there already, it is used. A folder of a run in the place of a
network explains the run: what its steps took, beside what is predicted.

  atomo explain --network ResNet50 --workers 4 --hostfile hosts --probe probe.json
  atomo explain runs/x --bandwidth 100mbit"""
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
    probe: str = option("", "file of what a job of --workers measures on its hosts and links")
    hostfile: str = option("", "file of hosts for --probe; empty: this host alone")
    mpi_args: str = option("", "further arguments for mpirun, for --probe")
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


def ways_of(options: ExplainOptions) -> Iterator[tuple[str, str]]:
    """Each codec to be measured, and the reduction that it is measured with."""
    specs = [spec for spec in options.code.split(";") if spec.strip()] or CODES
    codecs = [make_codec(spec) for spec in (*DENSE, *specs)]
    for spec, codec in {str(codec): codec for codec in codecs}.items():
        yield spec, "Allgather"
        if Law.SUMMABLE in codec.laws:
            yield spec, "Allreduce"
    if options.svd_rank:
        for name in ("PowerSGD", "ACPSGD"):
            yield f"svd(rank={options.svd_rank})", name


def communicators_of(spec: str, reduction: str) -> tuple[str, ...]:
    """Of which communicators the costs of a codec with a reduction say what they take."""
    if reduction != "Allgather":
        return (reduction,)
    # What is dense sums, in a fraction of the bytes.
    return ("Bcast",) if spec in DENSE else ("Bcast", "Allgather")
