"""The error and the bytes of each layer's codec, measured on gradients of a run for its report.

    {"step": 64, "rows": [{"name": "fc1.weight", "codec": "svd(rank=3)", "bytes": 15108,
     "error": 0.81}]}

An error is ||decoded - gradient|| / ||gradient|| of one encoding without a memory, as in `atomo
inspect`: a memory sends the error at later steps. Steps 4, 16, 64, 256 ... are measured, nine of
100,000, so that training is not slowed. Nothing of the run changes: the draws have a generator of
their own, and encoding works on a copy.
"""

import json
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Law
from atomo.config.comm_rules import has_master, survives_worker_loss
from atomo.config.file import SETTINGS_FILE
from atomo.core.devices import AsyncScalars
from atomo.errors import CheckpointError, CodecError
from atomo.exchange import Compressor
from atomo.exchange.compressor import gradient_of
from atomo.fusion import Bucket, Part
from atomo.memory import NoMemory
from atomo.training.folder.run_folder import Staging
from atomo.training.job.job import Job
from atomo.wire import Compression
from atomo.wire.frame import sections_of

__all__ = ["LAYER_ERRORS_FILE", "LayerErrors", "is_measured"]

LAYER_ERRORS_FILE: Final = "layer-errors.json"
BETWEEN: Final = 4  # a measured step over the measured step before
HAVE_ERRORS: Final = frozenset({Law.LOSSLESS, Law.UNBIASED, Law.CONTRACTION})
"""Laws of codecs that decode to an estimate of the gradient: a vote of signs is none."""


def is_measured(step: int) -> bool:
    """Returns True for the steps 4, 16, 64, 256 ...

    >>> [step for step in range(1, 300) if is_measured(step)]
    [4, 16, 64, 256]
    """
    return step >= BETWEEN and step & (step - 1) == 0 and step.bit_length() % 2 == 1


@final
class LayerErrors:
    """Measurement of one worker's gradients, as they are before memory and codec change them.

    Only exchanges that send what the codec makes of a worker's gradient are measured: not local
    steps, which send differences of weights, and not sums inside hosts or over ranks.
    """

    def __init__(self, job: Job, rows: Container[str] = (), *, is_on: bool = True) -> None:
        """Creates a measurement.

        Args:
            job: the training run.
            rows: parameters without values in the flat gradient, which are left out.
            is_on: False to measure nothing, on all workers but one.
        """
        s = job.settings
        is_flat = has_master(s.comm_type) or survives_worker_loss(s.comm_type, s.hierarchical)
        self._measures = is_on and s.report and is_flat and not s.has_local_steps
        self._job, self._rows, self._folder = job, rows, Path(s.train_dir)
        self._compressor = Compressor(NoMemory(), s.compression, worker=1, seed=s.seed)
        self._records: list[Mapping[str, Any]] = []

    def add(self, bucket: Bucket, flat: Float[Tensor, " n"], step: int) -> None:
        """Measures one bucket of a step, if due."""
        if self._measures and is_measured(step):
            planned = {own.number: own for own in self._job.buckets_at(step)}
            with suppress(CodecError):  # the exchange of the gradient raises it, with its reason
                self._records += self._measured(planned[bucket.number], flat, step)

    def finish(self, step: int) -> None:
        """Writes the measurement of the step, if any, to the folder of the run."""
        records, self._records = self._records, []
        # Hosts that do not share the folder have none: the report then says that none is known.
        if records and (self._folder / SETTINGS_FILE).exists():
            with suppress(CheckpointError), Staging(self._folder) as staging:
                data = json.dumps({"step": step, "rows": records}, allow_nan=False).encode()
                staging.write(LAYER_ERRORS_FILE, data + b"\n")
                staging.publish()

    def _measured(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int
    ) -> Iterator[Mapping[str, Any]]:
        """Yields the record of each part of a bucket."""
        compressor, scratch = self._compressor, flat.clone()
        compressor.agree(compressor.propose(bucket, scratch))
        payloads = compressor.encode(bucket, scratch, step)
        for part, payload in zip(bucket.parts, payloads, strict=True):
            if part.slots[0].name not in self._rows:
                yield part_record(part, payload, gradient_of(part, flat), self._job)


def part_record(
    part: Part, payload: Any, gradient: Float[Tensor, "..."], job: Job
) -> Mapping[str, Any]:
    """Returns the record of a part, with `None` for an error that is unknown."""
    lost = gradient.float().clone()
    norm = lost.norm()
    part.codec.add_decoded(payload, lost, -1.0)
    unsent, whole = AsyncScalars(lost.norm(), norm).values()
    estimates = bool(HAVE_ERRORS & part.codec.laws) and 0 < whole < float("inf")
    return {
        "name": part.label,
        "codec": str(part.codec),
        "bytes": stored_bytes(part, payload, job.settings.compression),
        "error": unsent / whole if estimates and unsent < float("inf") else None,
    }


def stored_bytes(part: Part, payload: Any, compression: Compression) -> int:
    """Returns the bytes of a payload in a frame, after lossless compression."""
    _, bodies = sections_of(part.codec.sections(payload), compression)
    return sum(body.size for body in bodies)
