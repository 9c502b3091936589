"""What goes wrong, and the exit code of it."""

from typing import ClassVar

__all__ = ["ClusterError", "Failed", "Refused"]


class ClusterError(Exception):
    """Base class; a command that it escapes from ends with its code."""

    exit_code: ClassVar[int]


class Refused(ClusterError):
    """Bad usage, a missing program or privilege; nothing was done."""

    exit_code = 2


class Failed(ClusterError):
    """It was tried, and did not succeed; nothing half-made is left."""

    exit_code = 3
