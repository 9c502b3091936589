"""Errors of this package, and the exit code with which each ends a command.

* AtomoError             1
  + ConfigError          2   a setting is unknown, missing, out of range or contradicts another
  + DataError            3   a data set is missing, incomplete or not what it should be
  + CheckpointError      4   a checkpoint cannot be written, read or continued from
    - CheckpointGone         it is not there, or no longer (in `training.checkpoint`)
    - FolderTaken            another process writes in the run's folder (in `training.ownership`)
  + TransportError       5   bytes did not arrive
    - PeerLost               the process at the other end is gone
    - DeadlineExpired        it is there, but did not answer in time
  + Diverged             6   the loss is no longer a finite number
  + CodecError           7   a gradient cannot be encoded, or a payload cannot be decoded
  + FrameError           7   bytes are not the frame that they should be
  + ReplicasDiffer       8   ranks that take the same steps came to other weights
  + TooFewWorkers        9   workers were lost, and fewer are left than the run may go on with

A rank that has done all it had to, and that MPI does not let go, ends with 14.
Inside, kernels raise ValueError where what they were given does not fit; codecs translate it. A
command that was interrupted (Ctrl-C) ends with 130. Anything else that escapes is a defect of this
package: exit code 1, with its traceback.
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
    "PeerLost",
    "ReplicasDiffer",
    "TooFewWorkers",
    "TransportError",
]

INTERRUPTED = 130
CUT_OFF = 14  # SIGALRM's number: see `transports.exit_alarm`


class AtomoError(Exception):
    """Base class of the errors that a caller has to expect."""

    exit_code: ClassVar[int] = 1


class ConfigError(AtomoError):
    """A setting is unknown, missing, out of range or contradicts another."""

    exit_code = 2


class DataError(AtomoError):
    """A data set is missing, incomplete or not what it should be."""

    exit_code = 3


class CheckpointError(AtomoError):
    """A checkpoint cannot be written, read or continued from."""

    exit_code = 4


class TransportError(AtomoError):
    """Bytes did not arrive."""

    exit_code = 5


class PeerLost(TransportError):
    """The process at the other end is gone."""

    def __init__(self, rank: int, doing: str) -> None:
        super().__init__(f"rank {rank} is gone; it was lost while {doing}")
        self.rank = rank


class DeadlineExpired(TransportError):
    """The process at the other end did not answer in time."""


class Diverged(AtomoError):
    """The loss is no longer a finite number."""

    exit_code = 6


class FrameFault(str, Enum):
    """In which way bytes are not the frame that they should be: refusals are counted by it."""

    DAMAGED = "damaged"  # no frame, cut off, or with another checksum
    TWICE = "twice"  # it came already
    STALE = "stale"  # of another step than its sender was given
    STRANGE = "strange"  # of another kind, sender, bucket, codec or version
    INCOMPLETE = "incomplete"  # a gradient without some of its buckets
    MALFORMED = "malformed"  # sections of other numbers, types or sizes, or lengths that lie
    INDICES = "indices"  # out of range, repeated, or not as many as it says
    NUMBERS = "numbers"  # NaN or infinity, or in a report out of bounds
    PAYLOAD = "payload"  # anything else that a codec cannot decode


class CodecError(AtomoError):
    """A gradient cannot be encoded, or a payload cannot be decoded."""

    exit_code = 7

    def __init__(self, text: str, fault: FrameFault = FrameFault.PAYLOAD) -> None:
        super().__init__(text)
        self.fault = fault
        """The kind of fault, if bytes were decoded."""


class FrameError(AtomoError):
    """Bytes are not the frame that they should be."""

    exit_code = 7

    def __init__(self, text: str, fault: FrameFault = FrameFault.MALFORMED) -> None:
        super().__init__(text)
        self.fault = fault


class ReplicasDiffer(AtomoError):
    """Ranks that take the same steps came to other weights."""

    exit_code = 8


class TooFewWorkers(AtomoError):
    """Workers were lost, and fewer are left than the run may go on with."""

    exit_code = 9
