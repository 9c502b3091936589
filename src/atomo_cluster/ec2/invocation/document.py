"""The JSON document that a command with `--json` prints, also when the command fails."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from atomo_cluster.errors import INTERRUPTED, ClusterError

__all__ = ["Document"]


@final
class Document:
    """Collects the output for scripts and prints it once the command has ended."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._record: Any = None

    def tell(self, record: Any) -> None:
        """Adds a record: mappings are merged, other values replace the document."""
        self._record = merge(self._record, record)

    @contextmanager
    def printed(self) -> Iterator[None]:
        """Prints the document at the end of the block; an empty one reports the error."""
        try:
            yield
        except (ClusterError, KeyboardInterrupt) as error:
            if self._record is None:
                code = error.exit_code if isinstance(error, ClusterError) else INTERRUPTED
                self._record = {"error": str(error) or "interrupted", "exit_code": code}
            raise
        finally:
            if self.enabled and self._record is not None:
                sys.stdout.write(json.dumps(self._record, indent=2, default=str) + "\n")


def merge(old: Any, new: Any) -> Any:
    """Merges two records.

    >>> merge({"a": {"x": 1}}, {"a": {"y": 2}, "b": 3})
    {'a': {'x': 1, 'y': 2}, 'b': 3}
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **{key: merge(old.get(key), value) for key, value in new.items()}}
    return new
