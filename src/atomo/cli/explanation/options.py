"""The options of `atomo explain`, and the codecs and communicators that they select."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from atomo.codecs import Codec, make_codec
from atomo.config.comm_types import PARAMETER_SERVER, REDUCTIONS
from atomo.core.arguments import flag, option
from atomo.core.bounds import ANY, COUNT, IMAGES, PIXELS, THREADS, Bound, check
from atomo.core.quantities import bits_per_second, seconds
from atomo.errors import ConfigError
from atomo.options.hierarchy import BY_NAME, canonical_hierarchy
from atomo.planning import HostModel, Link
from atomo.planning.comparison import DENSE
from atomo.planning.local_rounds import parse_every
from atomo.planning.rails import HIERARCHICAL

__all__ = [
    "DESCRIPTION",
    "ExplainOptions",
    "codec_reductions",
    "communicators_of",
    "parse_codecs",
    "skipped_communicators",
]

DESCRIPTION: Final = """\
Measures a model's passes and codecs on this machine, and predicts the time of a step of several
workers over the given links: with each codec and communicator, and with dense float32 and bf16
gradients; also for 8, 64 and 1024 workers. Nothing is trained, and no link is used.

  atomo explain --network ResNet50 --workers 16 --bandwidth 1gbit --latency 50us

With --probe FILE a short job of --workers processes measures all of this on its own hosts and
links, and writes the file; a file that exists already is read. With the folder of a run instead of
a network, the measured times of its steps are shown beside the predicted times.

With --local-steps H the table has rounds of H steps without communication and one exchange; auto
takes the shortest rounds of which 95 % are computing, which may be 1 step.

With --weights the passes run with the weights of a checkpoint. With --gradient codecs are measured
on a dump: the bytes sent, and the squared error over the squared norm of the gradient. The model of
a file in a run's folder is the run's. For other files give --network and --dataset, or --compute.

  atomo explain --network ResNet50 --workers 4 --hostfile hosts --probe probe.json
  atomo explain runs/x --bandwidth 100mbit
  atomo explain --gradient runs/x/gradients/step-00000050.safetensors --code 'topk; qsgd'
  atomo explain --weights model.safetensors --compute 80ms
  atomo explain torchvision:resnet50"""
CODES: Final = (
    "topk(ratio=0.01)", "dgc(ratio=0.001)", "svd(rank=3)", "qsgd", "efsignsgd", "chunktopk",
)  # fmt: skip
LOW_RANK: Final = ("PowerSGD", "ACPSGD")
BOUNDS: Final[Mapping[str, Bound]] = {
    "image_size": PIXELS,
    "batch_size": IMAGES,
    "svd_rank": ANY,
    "workers": Bound(1, 1_000_000, "a job needs a worker", "no job has so many"),
    "threads": replace(THREADS, least=1),
    "cores": ANY,
    "processes_per_host": Bound(1, 4096, "a worker is a process", "no host has so many"),
    "repetitions": COUNT,
}


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """The options of `atomo explain`."""

    network: str = option("ResNet18", "model to predict the steps of")
    dataset: str = option("Noise", "data set; Noise: random images of --image-size")
    data_dir: str = option("data", "folder of the data sets")
    image_size: int = option(0, "pixels a side of Noise; 0: the default, 224")
    batch_size: int = option(32, "samples per worker and step")
    workers: int = option(8, "number of workers, one a host except with --hierarchical")
    hierarchical: str = option(
        "no", "workers a host, which share its link; also predicts dense sums inside the hosts"
    )
    bandwidth: str = option("1gbit", "bandwidth of each host's link, both ways: 100mbit, 25gbit")
    latency: str = option("50us", "one-way latency of a message between hosts: 50us, 1ms")
    code: str = option("", "one codec or several, separated by ';'; empty: a few")
    svd_rank: int = option(4, "rank of PowerSGD; 0: without PowerSGD")
    threads: int = option(1, "compute threads of each process")
    processes_per_host: int = option(1, "processes that share the cores of a host")
    cores: int = option(0, "cores of a host; 0: as many as this machine has")
    repetitions: int = option(3, "repetitions of each timing; the shortest counts")
    weights: str = option(
        "",
        "file of the model's weights: a checkpoint, .safetensors or .npz; empty: random weights",
    )
    gradient: str = option(
        "",
        "file of named gradients to measure codecs on, .safetensors or .npz; empty: of one pass",
    )
    compute: str = option("", "time of forward and backward pass: 80ms; empty: measured here")
    probe: str = option("", "file of a probe: a job of --workers measures its hosts and links")
    hostfile: str = option("", "host file for --probe; empty: this host alone")
    mpi_args: str = option("", "further arguments for mpirun, for --probe")
    local_steps: str = option(
        "", "predict rounds of so many local steps; auto: as few as leave 95 % to computing"
    )
    json: bool = option(False, "one JSON document: yes or no")
    png: str = option("", "file for a plot over bandwidth; needs matplotlib")
    html: str = option("", "file for a page with curves, the table and answers in words")

    def __post_init__(self) -> None:
        check(self, BOUNDS, flag)
        if self.per_host > 1 and self.per_host >= self.workers:
            raise ConfigError(
                f"--hierarchical {self.hierarchical}: {self.workers} workers are then one host, "
                f"and nothing is compressed; give at most {self.workers - 1} for a host, or no"
            )
        if self.per_host > 1 and self.probe:
            raise ConfigError(
                f"--hierarchical {self.hierarchical} --probe {self.probe}: a probe measures links "
                "between all processes, not between hosts; leave one of the two out"
            )

        if self.probe and (file := self.weights or self.gradient or self.compute):
            raise ConfigError(
                f"--probe {self.probe} measures passes and gradients itself; leave {file} out"
            )
        if self.local_steps:
            parse_every(self.local_steps)
            if self.html:
                raise ConfigError(
                    f"--html {self.html} --local-steps {self.local_steps}: the page has steps with "
                    "an exchange each; leave one of the two out"
                )
        if self.weights and self.gradient:
            raise ConfigError(
                f"--weights {self.weights} --gradient {self.gradient}: gradients are computed "
                "with weights, or read from a file; give one of the two"
            )

    @property
    def real_gradient(self) -> bool:
        """True if the gradient comes from a training, so that codec errors on it are meaningful."""
        return bool(self.gradient or (self.weights and not self.compute))

    @property
    def compute_s(self) -> float | None:
        """Seconds of the passes, as `--compute` gives them; None: not given."""
        return seconds(self.compute, flag("compute")) if self.compute else None

    @property
    def per_host(self) -> int:
        """Workers of a host.

        Raises:
            ConfigError: `--hierarchical hosts`: there is no job whose hosts have names.
        """
        hierarchy = canonical_hierarchy(self.hierarchical)
        if hierarchy == BY_NAME:
            raise ConfigError(
                f"--hierarchical {self.hierarchical}: no job runs whose hosts have names; give how "
                "many workers share a host, e.g. 4"
            )
        return int(hierarchy or 1)

    @property
    def link(self) -> Link:
        """The link of each host."""
        bits = bits_per_second(self.bandwidth, flag("bandwidth"))
        return Link(bits / 8, seconds(self.latency, flag("latency")))

    @property
    def host_model(self) -> HostModel:
        """The host model of each host, relative to this machine."""
        cores = self.cores or os.cpu_count() or 1
        processes = max(self.processes_per_host, self.per_host)
        computing = processes * self.threads
        spare = cores >= computing + processes
        return HostModel(max(1.0, computing / cores), 0.0 if spare else 1.0)


def codec_reductions(options: ExplainOptions) -> Iterator[tuple[str, str]]:
    """Yields each codec to be measured, and the reduction that it is measured with."""
    for spec, codec in parse_codecs(options).items():
        for name in REDUCTIONS:
            if not misfit(codec, name):
                yield spec, name
    if options.svd_rank:
        for name in LOW_RANK:
            yield f"svd(rank={options.svd_rank})", name


def parse_codecs(options: ExplainOptions) -> dict[str, Codec[Any]]:
    """Returns the codecs by their full names, dense codecs first."""
    specs = [spec for spec in options.code.split(";") if spec.strip()] or CODES
    codecs = [make_codec(spec) for spec in (*DENSE, *specs)]
    return {str(codec): codec for codec in codecs}


def misfit(codec: Codec[Any], reduction: str) -> str:
    """Explains why a codec is not predicted with a reduction; empty: it is predicted."""
    if reduction in LOW_RANK:
        return f"--comm-type {reduction} is predicted for svd of --svd-rank, which is 0"
    if str(codec) in DENSE and reduction not in ("Allgather", "Allreduce"):
        return f"{codec} is dense, which Allreduce sums"
    try:
        REDUCTIONS[reduction].adapt_codec(codec)
    except ConfigError as error:
        return str(error)
    return ""


def skipped_communicators(options: ExplainOptions) -> dict[str, str]:
    """Returns the communicators without a prediction, and the reasons."""
    shown = {name for _, name in codec_reductions(options)}
    codecs = [*parse_codecs(options).values()]
    return {name: misfit(codecs[-1], name) for name in REDUCTIONS if name not in shown}


def communicators_of(options: ExplainOptions, spec: str, reduction: str) -> tuple[str, ...]:
    """Returns the communicators that the costs of a codec with a reduction can predict."""
    # Allreduce sums dense payloads with a fraction of the bytes.
    flat = () if reduction == "Allgather" and spec in DENSE else (reduction,)
    inside = tuple(HIERARCHICAL + name for name in flat) if options.per_host > 1 else ()
    master = (PARAMETER_SERVER,) if reduction == "Allgather" else ()
    return (*master, *flat, *inside)
