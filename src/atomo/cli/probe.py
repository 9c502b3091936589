"""`atomo probe`: one rank of the job that `atomo explain --probe` starts."""

from collections.abc import Sequence
from pathlib import Path

import torch

from atomo.cli.explanation.options import DESCRIPTION, ExplainOptions, codec_reductions
from atomo.codecs import make_codec
from atomo.config.comm_types import COMM_TYPES
from atomo.config.settings import Settings
from atomo.core.arguments import parse_arguments
from atomo.core.process.allocator import keep_freed_memory
from atomo.launch.jobs.probes import subject_of
from atomo.launch.resolve import canonical_settings
from atomo.planning.probe import Probe, write_probe
from atomo.training.job.job import make_job
from atomo.training.plans.job_probe import probe_job
from atomo.transports import Transport, connect

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Measures with all other ranks; rank 0 writes the file."""
    options = parse_arguments(ExplainOptions, words, "probe", DESCRIPTION)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    transport = connect("mpi")
    probe = measure_communicators(options, transport)
    if transport.rank == 0:
        write_probe(Path(options.probe), subject_of(options, transport.size), probe)
    return 0


def measure_communicators(options: ExplainOptions, transport: Transport) -> Probe:
    """Measures all communicators with all ranks together."""
    job = make_job(canonical_settings(settings_of(options, transport.size)), transport.size)
    methods = [(make_codec(code), reduction) for code, reduction in codec_reductions(options)]
    return probe_job(
        job, transport, torch.device("cpu"), methods, options.repetitions, comm_types=COMM_TYPES
    )


def settings_of(options: ExplainOptions, ranks: int) -> Settings:
    """Returns the run whose parts are measured."""
    return Settings(
        n=ranks,
        network=options.network,
        dataset=options.dataset,
        data_dir=options.data_dir,
        image_size=options.image_size or None,
        batch_size=options.batch_size,
        threads=options.threads,
        comm_type="Allgather",
        code="sgd",
        fusion="layer",
        resume="never",
    )
