"""The communicator contract: gradients of all ranks go in, their mean comes out.

A step has three parts:

    communicator.begin(step, buckets, out)
    communicator.push(bucket, flat)           once for each bucket, during the backward pass
    exchanged = communicator.average(report)  waits for all buckets; then `out` is the mean

Encoding, sending, receiving and decoding begin with the first push, and overlap with the backward
pass. The communicator owns the memory and the codec, and takes the times. If ranks must agree on a
scale, or need the norm of the whole gradient, it does so before it encodes. It exchanges buckets in
the same order on all ranks, in any order of the pushes. After `average`, `out` and the reports are
the same on every rank, bit for bit.

A `Reduction` averages one bucket. Each reduction has a file, and `comm_types.py` lists them all.
Runs and hooks average by the same reductions, in the stages of `stages.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.compressor import Compressor
from atomo.exchange.report import Report
from atomo.fusion import Bucket

__all__ = ["ALL_USED", "Communicator", "Exchanged", "Reduction", "Usage"]

Encoded = TypeVar("Encoded")
Received = TypeVar("Received")


@final
@dataclass(frozen=True)
class Exchanged:
    """The reports and times of a step."""

    reports: Mapping[int, Report]
    """The reports of all ranks with a gradient in the mean, in rank order."""
    decode_s: float  # on this rank, without the time of receiving
    exchange_s: float  # between first push and mean, while anything was encoded, sent or decoded
    hidden_s: float  # the part of `exchange_s` that overlapped with the backward pass

    def plus(self, later: "Exchanged") -> "Exchanged":
        """Returns the reports and times of this step and a later step together."""
        reports = {**self.reports}
        for rank, report in later.reports.items():
            reports[rank] = reports[rank].plus(report) if rank in reports else report
        return Exchanged(
            reports,
            self.decode_s + later.decode_s,
            self.exchange_s + later.exchange_s,
            self.hidden_s + later.hidden_s,
        )


class Communicator(ABC):
    """Averages gradients over the ranks. Abstract; subclasses are final."""

    @abstractmethod
    def begin(self, step: int, buckets: Sequence[Bucket], out: Float[Tensor, " n"]) -> None:
        """Opens a step.

        Args:
            step: the number of the step, the same on all ranks.
            buckets: the buckets of the whole gradient, with the codecs of this step.
            out: the tensor that becomes the mean. The caller must not use it before `average`
                returns.
        """

    @abstractmethod
    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Submits the gradient of one bucket.

        Args:
            bucket: the bucket.
            flat: its gradient, which becomes scratch space. The caller must not use it before
                `average` returns.
        """

    @abstractmethod
    def average(self, report: Report) -> Exchanged:
        """Closes the step: waits until `out` is the mean.

        Args:
            report: the report of this rank. The communicator adds its times before other ranks get
                it.

        Raises:
            CodecError: a codec cannot encode the gradient of this rank.
            FrameError: a received message is not a gradient of this step.
            TransportError: a rank has died, or does not answer; the message names it.
        """


@final
@dataclass(frozen=True)
class Usage:
    """Facts about the gradient of a bucket, known before it is encoded."""

    unused: frozenset[str] = frozenset()
    """The parameters with a gradient of zeros."""
    not_finite: frozenset[str] = frozenset()
    """The parameters with NaN or infinity in the gradient."""


ALL_USED: Final = Usage()


class Reduction(ABC, Generic[Encoded, Received]):
    """The average of one bucket over all ranks. Abstract; subclasses are final.

    It has three stages, each in a thread of its own (`stages.py`). Buckets pass each stage in the
    order of their numbers, which is the same on all ranks.
    """

    memories: ClassVar[tuple[str, ...]] = ()
    """The memories that the reduction works with, the default first. Empty: the codec decides."""
    momentum_memory: ClassVar[str | None] = None
    """The default memory with momentum in the optimizer. None: the same as without."""
    announced: ClassVar["type[Reduction[Any, Any]] | None"] = None
    """The reduction for ranks that use different parameters: each rank announces the parameters
    that it used. None: `encode` handles unused parameters itself."""
    is_code: ClassVar[bool] = False
    """True if its name is a code of hooks, such as `powersgd(rank=4)`: see `codec_for`."""
    gathers: ClassVar[bool] = False
    """True if every rank gets the messages of all others. Predictions of its time then treat it as
    an all-gather, and else as an all-reduce."""
    accepts_half: ClassVar[bool] = True
    """True if `encode` takes gradients in half precision, if codec and memory do so too."""
    accepts_gaps: ClassVar[bool] = False
    """True if the parameters of a part may lie apart in the gradient of a bucket."""
    has_state: ClassVar[bool] = False
    """True if a checkpoint must save the `state_dict`, from which the next step starts."""
    entrywise: ClassVar[bool] = False
    """True if it sums uncompressed entries, in any order that is the same on all ranks."""

    @abstractmethod
    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        """Makes a reduction over the ranks of `collective`, which encodes with `compressor`."""

    @classmethod
    @abstractmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        """Returns the codec with the settings that this reduction needs.

        Raises:
            ConfigError: the codec does not fit this reduction; the message names codecs that do.
        """

    @classmethod
    def codec_for(cls, code: str) -> Codec[Any]:
        """Returns the codec for a code of a hook that has the name of this reduction.

        Raises:
            ConfigError: the code has settings that the codec does not take.
        """
        raise ConfigError(f"{code!r} is no code: {cls.__name__} takes any codec")

    @classmethod
    def default_memory(cls, momentum: float) -> str | None:
        """Returns the memory for this momentum of the optimizer; None: the codec decides."""
        plain = cls.memories[0] if cls.memories else None
        return cls.momentum_memory if momentum and cls.momentum_memory else plain

    @abstractmethod
    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> Encoded:
        """Encodes one bucket. Several threads may encode different buckets at a time.

        Args:
            bucket: the bucket.
            flat: its gradient, which is scratch space until the bucket is decoded.
            step: the number of the step.
            usage: the parameters that this rank did not use. Runs use all parameters.

        Raises:
            CodecError: a codec cannot encode the gradient.
        """

    @abstractmethod
    def exchange(self, bucket: Bucket, encoded: Encoded, step: int) -> Received:
        """Sends the encoded bucket, and receives those of other ranks.

        Ranks start all collective operations here, in the same order. `decode` may read the
        iterator of a `gather` if no other operation of the collective follows the gather.

        The reductions of `comm_types.REPEATING` may exchange one encoded bucket several times, each
        time with other ranks.

        Raises:
            NotFiniteSum: the gradient of some rank is not finite; all ranks raise it.
            TransportError: a rank did not take part.
        """

    @abstractmethod
    def decode(
        self, bucket: Bucket, received: Received, step: int, out: Float[Tensor, " n"]
    ) -> None:
        """Replaces `out` by the mean. `out` may be the tensor that was encoded.

        Raises:
            FrameError: a received message is not the gradient of this bucket and step.
        """

    def sent_bytes(self, encoded: Encoded, received: Received) -> int:
        """Returns the number of bytes that this rank sent for a bucket."""
        raise NotImplementedError(f"{type(self).__name__} does not count its bytes")

    def take_back(self, bucket: Bucket, encoded: Encoded, device: torch.device) -> None:
        """Gives an encoded bucket that is in no mean back to the memory.

        Only the reductions of `comm_types.REPEATING` have this method.

        Args:
            bucket: the bucket.
            encoded: the result of `encode`, exchanged or not.
            device: the device of the gradient.
        """
        raise NotImplementedError(f"{type(self).__name__} does not repeat")

    def prepare(self, bucket: Bucket, device: torch.device) -> None:
        """Makes the state of a bucket that was never encoded, if the reduction has a state."""
        del bucket, device  # most have none

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the state to save beside the memories. It is the same on all ranks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces the state by a `state_dict` of this or another reduction.

        Raises:
            CheckpointError: it is not such a state.
        """
        del state  # most have none
