"""The file in which torchrun looks for the error that ended a process.

torchrun reports the process with the earliest error as the cause of a failed job. Without these
files its report has exit codes alone.
"""

import json
import os
import time
import traceback
from contextlib import suppress
from typing import Final

from atomo.errors import PeerLost

__all__ = ["record_error"]

VARIABLE: Final = "TORCHELASTIC_ERROR_FILE"


def record_error(error: BaseException) -> None:
    """Writes an error to the file that torchrun has named; nothing if the process was not started
    by torchrun, or an earlier error is there.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    # Another rank's error is later than that error: torchrun counts seconds and takes the first.
    is_consequence = isinstance(error, PeerLost)
    details = {
        "py_callstack": "".join(traceback.format_exception(error)),
        "timestamp": str(int(time.time()) + is_consequence),
    }
    record = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": details}}
    # The user must see the error itself, also if the file cannot be written.
    with suppress(OSError), open(path, "x", encoding="utf-8") as file:
        json.dump(record, file)
