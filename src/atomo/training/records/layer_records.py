"""The layers of a run in its folder: the codec of each, and the bytes of its payload.

    {"rows": [{"name": "fc1.weight", "codec": "svd(rank=3)", "entries": 400000, "bytes": 15108}]}

The bytes are the most that a payload may have, before lossless compression: those of sampling
codecs vary from step to step.
"""

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, Final

from atomo.codecs import Field
from atomo.fusion import Part
from atomo.training.folder.run_folder import Staging
from atomo.training.job.job import Job

__all__ = ["LAYERS_FILE", "keep_layers"]

LAYERS_FILE: Final = "layers.json"


def keep_layers(folder: Path, job: Job) -> None:
    """Writes the layers of a run, with the codecs of its last stage.

    Raises:
        CheckpointError: the file cannot be written.
    """
    with Staging(folder) as staging:
        staging.write(LAYERS_FILE, json.dumps({"rows": [*layers(job)]}).encode() + b"\n")
        staging.publish()


def layers(job: Job) -> Iterator[dict[str, Any]]:
    """Yields the parts of all buckets: each is encoded as one payload."""
    for bucket in job.buckets_at(job.last_step):
        for part in bucket.parts:
            yield {
                "name": part.label,
                "codec": str(part.codec),
                "entries": part.stop - part.start,
                "bytes": payload_bytes(part),
            }


def payload_bytes(part: Part) -> int:
    """Returns the most bytes that a payload of a part has."""
    return sum(map(field_bytes, part.fields))


def field_bytes(field: Field) -> int:
    """Returns the most bytes of a tensor of a payload."""
    entries = prod(field.max_shape) if field.max_entries is None else field.max_entries
    return entries * field.dtype.itemsize
