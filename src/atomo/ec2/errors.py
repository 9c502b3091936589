"""What can go wrong with a cluster, and the exit code that each ends `pytorch_ec2.py` with.

* AtomoError             1
  + ConfigError          2   a setting is unknown, missing or out of range; nothing was done
  + CloudError           3   AWS refused, failed or could not be reached
  + RemoteError          4   a host could not be reached, or a command failed there
  + NotReady             5   a check before the launch failed; nothing was done
  + Declined             6   the question was answered with no; nothing was done
  + LeftBehind           7   something that costs money, or may, is still there
"""

from typing import ClassVar

from atomo.errors import AtomoError

__all__ = ["CloudError", "Declined", "LeftBehind", "NotReady", "RemoteError"]


class CloudError(AtomoError):
    """AWS refused, failed or could not be reached."""

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code  # EC2's own name of the error, e.g. InsufficientInstanceCapacity


class RemoteError(AtomoError):
    """A host could not be reached, or a command failed there."""

    exit_code = 4


class NotReady(AtomoError):
    """A check before the launch failed."""

    exit_code = 5


class Declined(AtomoError):
    """The question was answered with no."""

    exit_code = 6


class LeftBehind(AtomoError):
    """Something is still there that should be gone."""

    exit_code = 7
