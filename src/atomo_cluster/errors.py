"""Errors of clusters, and the exit code with which each ends a command.

* ClusterError           1
  + ConfigError          2   a setting is unknown, missing or out of range; nothing was done
  + Refused              2   a program or a privilege is missing; nothing was done
  + CloudError          10   AWS refused, failed or could not be reached
  + RemoteError         11   a host could not be reached, or a command failed there
  + NotReady            12   a check before the launch failed; nothing was done
  + Declined            13   the question was answered with no; nothing was done
  + LeftBehind          14   a resource that costs money, or may, still exists
  + Failed              15   a virtual cluster could not be made or changed

Commands that run others (`train`, `ssh`, `exec`) end with the code of the program that they run, so
these codes avoid those of `atomo`, which end at 9. An interrupted command ends with 130. Any other
exception is a defect of this package: exit code 1, with its traceback.
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
    """Base class of all errors of this package."""

    exit_code: ClassVar[int] = 1


class ConfigError(ClusterError):
    """A setting is unknown, missing or out of range; nothing was done."""

    exit_code = 2


class Refused(ClusterError):
    """A usage error, or a missing program or privilege; nothing was done."""

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
    """A resource still exists that should be gone."""

    exit_code = 14


class Failed(ClusterError):
    """A virtual cluster could not be made or changed; nothing half-made is left."""

    exit_code = 15
