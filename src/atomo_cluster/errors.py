"""What can go wrong with a cluster, and the exit code that each ends a command with.

* ClusterError           1
  + ConfigError          2   a setting is unknown, missing or out of range; nothing was done
  + Refused              2   a program or a privilege is missing here; nothing was done
  + CloudError          10   AWS refused, failed or could not be reached
  + RemoteError         11   a host could not be reached, or a command failed there
  + NotReady            12   a check before the launch failed; nothing was done
  + Declined            13   the question was answered with no; nothing was done
  + LeftBehind          14   something that costs money, or may, is still there
  + Failed              15   a virtual cluster could not be made or changed

Commands that run others (`train`, `ssh`, `exec`) end with the code of what they ran, so
what is ours keeps clear of the codes of `atomo`, which end at 9. A command that was interrupted
ends with 130. Anything else that escapes is a defect of this package: exit code 1, with its
traceback.
"""

from typing import ClassVar

__all__ = [
    "INTERRUPTED",
    "CloudError",
    "ClusterError",
    "ConfigError",
    "Declined",
    "Failed",
    "LeftBehind",
    "NotReady",
    "Refused",
    "RemoteError",
]

INTERRUPTED = 130


class ClusterError(Exception):
    """Base class, so that a caller can catch everything we raise."""

    exit_code: ClassVar[int] = 1


class ConfigError(ClusterError):
    """A setting is unknown, missing or out of range; nothing was done."""

    exit_code = 2


class Refused(ClusterError):
    """Bad usage, a missing program or privilege; nothing was done."""

    exit_code = 2


class CloudError(ClusterError):
    """AWS refused, failed or could not be reached."""

    exit_code = 10

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code  # EC2's own name of the error, e.g. InsufficientInstanceCapacity


class RemoteError(ClusterError):
    """A host could not be reached, or a command failed there."""

    exit_code = 11


class NotReady(ClusterError):
    """A check before the launch failed; nothing was done."""

    exit_code = 12


class Declined(ClusterError):
    """The question was answered with no; nothing was done."""

    exit_code = 13


class LeftBehind(ClusterError):
    """Something is still there that should be gone."""

    exit_code = 14


class Failed(ClusterError):
    """A virtual cluster could not be made or changed; nothing half-made is left."""

    exit_code = 15
