"""Choice of gradients of embeddings by rows: the codec gets only the rows that a batch touched."""

from typing import Final

from atomo.codecs.rows import RowGradient
from atomo.config.comm_types import PARAMETER_SERVER
from atomo.memory import make_memory
from atomo.training.job.job import Job

__all__ = ["row_gradients"]

BY_FRAMES: Final = frozenset({PARAMETER_SERVER, "Allgather"})  # a frame of each rank is decoded


def row_gradients(job: Job) -> dict[str, RowGradient] | None:
    """Returns an empty mapping for these gradients, by parameter; None if all must be dense.

    The gradient must be dense if encoding first needs its norm or a scale of all workers, if
    payloads are summed before they are decoded, with local steps, in fp16, and for a gradient dump.
    """
    s = job.settings
    memory = make_memory(s.memory, s.momentum_of_sgd, s.uses_nesterov, s.workers)
    buckets = [bucket for stage in job.stages for bucket in stage.buckets]
    whole = (
        memory.needs_norm
        or any(
            bucket.agreeing or (bucket.amplifies_noise and s.noise_damping) for bucket in buckets
        )
        or s.precision == "fp16"
        or s.dump_every
        or s.has_local_steps
    )
    reads = memory.encodes_rows and s.comm_type in BY_FRAMES
    return {} if reads and not whole else None
