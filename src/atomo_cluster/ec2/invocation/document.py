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

    def fail(self, error: str, exit_code: int) -> None:
        """Adds `error` and `exit_code` to the record; a list of records goes to `records`."""
        record = self._record
        whole = dict(record) if isinstance(record, Mapping) else {"records": record}
        self._record = {**(whole if record is not None else {}), "error": error,
                        "exit_code": exit_code}  # fmt: skip

    @contextmanager
    def printed(self) -> Iterator[None]:
        """Prints the document at the end of the block, with the error if the block failed."""
        try:
            yield
        except BrokenPipeError:  # nobody reads the document
            raise
        except ClusterError as error:
            self.fail(str(error), error.exit_code)
            raise
        except KeyboardInterrupt as error:
            self.fail(str(error) or "interrupted", INTERRUPTED)
            raise
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}", ClusterError.exit_code)
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
