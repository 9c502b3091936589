"""`atomo probe`: one rank of the job that `atomo explain --probe` starts."""

from collections.abc import Sequence
from pathlib import Path

import torch

from atomo.allocator import keep_freed_memory
from atomo.arguments import parse
from atomo.cli.explain_options import DESCRIPTION, ExplainOptions, ways_of
from atomo.config import Settings
from atomo.launch.place import canonical
from atomo.launch.probes import subject_of
from atomo.profiling import probe, write_probe
from atomo.transports import connect

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Measures with all other ranks; rank 0 writes the file."""
    options = parse(ExplainOptions, words, "probe", DESCRIPTION)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    transport = connect("mpi")
    settings = canonical(settings_of(options, transport.size))
    subject = subject_of(options, transport.size)
    found = probe(settings, transport, subject, (*ways_of(options),), options.repetitions)
    if transport.rank == 0:
        write_probe(Path(options.probe), found)
    return 0


def settings_of(options: ExplainOptions, ranks: int) -> Settings:
    """The run whose parts are measured."""
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
