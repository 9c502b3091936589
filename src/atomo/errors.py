"""Errors of this package, and the exit code of a command that ends with each error.

* AtomoError             1
  + ConfigError          2   a setting is unknown, missing, out of range or contradicts another
    - MissingPackage         a package that an extra brings is not installed
  + DataError            3   a data set is missing, incomplete or malformed
  + CheckpointError      4   a checkpoint cannot be written, read or continued from
    - CheckpointGone         the checkpoint does not exist, or was deleted
    - FolderTaken            another process writes in the run's folder
  + TransportError       5   bytes did not arrive
    - PeerLost               the process at the other end has ended
    - DeadlineExpired        the process at the other end did not answer in time
  + Diverged             6   the loss is no longer a finite number
  + CodecError           7   a gradient cannot be encoded, or a payload cannot be decoded
  + FrameError           7   bytes are not the expected frame
  + ReplicasDiffer       8   ranks that take the same steps have different weights
  + TooFewWorkers        9   workers were lost, and fewer remain than the run needs

A rank that has finished its work, but hangs in MPI's finalize, ends with 14. A command that was
interrupted (Ctrl-C) ends with 130. Any other exception that ends a command is a defect of this
package: exit code 1, with a traceback. Kernels raise ValueError for arguments that do not fit;
codecs translate ValueError into CodecError.
"""

from enum import Enum
from typing import ClassVar

__all__ = [
    "AtomoError",
    "CheckpointError",
    "CodecError",
    "ConfigError",
    "DataError",
    "DeadlineExpired",
    "Diverged",
    "FrameError",
    "FrameFault",
    "MissingPackage",
    "PeerLost",
    "ReplicasDiffer",
    "TooFewWorkers",
    "TransportError",
]

INTERRUPTED = 130
CUT_OFF = 14  # SIGALRM's number: see `transports.exit_alarm`


class AtomoError(Exception):
    """Base class of the errors that a caller may need to handle."""

    exit_code: ClassVar[int] = 1


class ConfigError(AtomoError):
    """A setting is unknown, missing, out of range or contradicts another."""

    exit_code = 2


class MissingPackage(ConfigError):
    """A package that an extra brings is not installed."""


class DataError(AtomoError):
    """A data set is missing, incomplete or malformed."""

    exit_code = 3


class CheckpointError(AtomoError):
    """A checkpoint cannot be written, read or continued from."""

    exit_code = 4


class TransportError(AtomoError):
    """Bytes did not arrive."""

    exit_code = 5


class PeerLost(TransportError):
    """The process at the other end has ended."""

    def __init__(self, rank: int, doing: str) -> None:
        super().__init__(f"rank {rank} is gone; it was lost while {doing}")
        self.rank = rank


class DeadlineExpired(TransportError):
    """The process at the other end did not answer in time."""


class Diverged(AtomoError):
    """The loss is no longer a finite number."""

    exit_code = 6


class FrameFault(str, Enum):
    """Kind of fault in a frame; refused frames are counted by kind."""

    DAMAGED = "damaged"  # no frame, truncated, or a wrong checksum
    TWICE = "twice"  # a duplicate
    STALE = "stale"  # of a step that its sender was not assigned
    STRANGE = "strange"  # an unexpected kind, sender, bucket, codec or version
    INCOMPLETE = "incomplete"  # a gradient without some of its buckets
    MALFORMED = "malformed"  # unexpected number, types or sizes of sections, or wrong lengths
    INDICES = "indices"  # out of range, repeated, or another number of them than declared
    NUMBERS = "numbers"  # NaN or infinity, or a report's value out of bounds
    PAYLOAD = "payload"  # any other payload that a codec cannot decode


class CodecError(AtomoError):
    """A gradient cannot be encoded, or a payload cannot be decoded."""

    exit_code = 7

    def __init__(self, text: str, fault: FrameFault = FrameFault.PAYLOAD) -> None:
        super().__init__(text)
        self.fault = fault
        """The kind of fault, if bytes were decoded."""


class FrameError(AtomoError):
    """Bytes are not the expected frame."""

    exit_code = 7

    def __init__(self, text: str, fault: FrameFault = FrameFault.MALFORMED) -> None:
        super().__init__(text)
        self.fault = fault


class ReplicasDiffer(AtomoError):
    """Ranks that take the same steps have different weights."""

    exit_code = 8


class TooFewWorkers(AtomoError):
    """Workers were lost, and fewer remain than the run needs."""

    exit_code = 9
