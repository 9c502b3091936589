"""The communicator contract: gradients of all ranks go in, their mean comes out.

A step has three parts:

    communicator.begin(step, buckets, out)
    communicator.push(bucket, flat)           once for each bucket, as the backward pass makes them
    exchanged = communicator.average(report)  waits for the rest; `out` is the mean

Encoding, sending, receiving and decoding begin with the first push and go on beside the backward
pass. What the gradients must go through belongs to the communicator and to nobody else: the memory
and the codec; rounds in which ranks agree on a scale first, or wait for the norm of the whole
gradient; the order in which buckets travel, which is the same on all ranks whatever the order in
which they are pushed; and timing. So is the law: after `average`, `out` is the same on every rank,
in every bit, and so are the reports.

How one bucket gets from n gradients to their mean is a `Reduction`, a file each, listed in
`comm_types.py`. Runs and hooks average by the same reductions, in the stages of `stages.py`.
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
    """The reports of all ranks whose gradient counted, in rank order."""
    decode_s: float  # receiving apart, on this rank
    exchange_s: float  # between first push and mean, while anything was encoded, sent or decoded
    hidden_s: float  # how much of `exchange_s` ran beside the backward pass


class Communicator(ABC):
    """Averages gradients over the ranks. Abstract; subclasses are final."""

    @abstractmethod
    def begin(self, step: int, buckets: Sequence[Bucket], out: Float[Tensor, " n"]) -> None:
        """Opens a step.

        Args:
            step: its number, the same on all ranks.
            buckets: of the whole gradient, with the codecs of this step.
            out: what becomes the mean. Not to be touched before `average` returned.
        """

    @abstractmethod
    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Hands over the gradient of one bucket, which serves as scratch space afterwards.

        It is not to be touched before `average` returned.
        """

    @abstractmethod
    def average(self, report: Report) -> Exchanged:
        """Closes the step: waits until `out` is the mean.

        Args:
            report: what this rank says of its step. Others get it with the times filled in that
                the communicator took.

        Raises:
            CodecError: a codec cannot carry this rank's gradient.
            FrameError: what came is not a gradient of this step.
            TransportError: a rank is gone, or does not answer; the message names it.
        """


@final
@dataclass(frozen=True)
class Usage:
    """Facts about the gradient of a bucket, known before it is encoded."""

    unused: frozenset[str] = frozenset()
    """The parameters whose gradient is zero throughout."""
    not_finite: frozenset[str] = frozenset()
    """The parameters whose gradient holds NaN or infinity."""


ALL_USED: Final = Usage()


class Reduction(ABC, Generic[Encoded, Received]):
    """The way of one bucket from n gradients to their mean. Abstract; subclasses are final.

    Three stages, each in a thread of its own (`stages.py`). Buckets pass each stage in the order of
    their numbers, on all ranks alike.
    """

    memories: ClassVar[tuple[str, ...]] = ()
    """Memories that it works with, the default first. Empty: the codec decides."""
    momentum_memory: ClassVar[str | None] = None
    """The default where the optimiser has momentum, if it is another."""
    announced: ClassVar["type[Reduction[Any, Any]] | None"] = None
    """The reduction for ranks that use different parameters, which they announce to each other;
    None: `encode` takes them into account by itself."""
    is_code: ClassVar[bool] = False
    """True if hooks take its name as their code, such as `powersgd(rank=4)`: see `codec_for`."""
    gathers: ClassVar[bool] = False
    """True if every rank gets what all others send. Predictions of its time then take it for an
    all-gather, and else for an all-reduce."""
    accepts_half: ClassVar[bool] = True
    """True if `encode` takes gradients in half precision, where codec and memory do."""
    has_state: ClassVar[bool] = False
    """True if the next step starts from what `state_dict` returns."""
    entrywise: ClassVar[bool] = False
    """True if entries are summed as they are, in any order that all ranks have in common."""

    @abstractmethod
    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        """Makes a reduction over the ranks of `collective`, which encodes with `compressor`."""

    @classmethod
    @abstractmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        """Returns the codec as it is used here.

        Raises:
            ConfigError: it does not go with this; the message says what does.
        """

    @classmethod
    def codec_for(cls, code: str) -> Codec[Any]:
        """Returns the codec that a code of a hook stands for, which names this reduction.

        Raises:
            ConfigError: it has settings that the codec does not take.
        """
        raise ConfigError(f"{code!r} is no code: {cls.__name__} takes any codec")

    @classmethod
    def default_memory(cls, momentum: float) -> str | None:
        """Returns the memory for this momentum of the optimiser; None: the codec decides."""
        plain = cls.memories[0] if cls.memories else None
        return cls.momentum_memory if momentum and cls.momentum_memory else plain

    @abstractmethod
    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> Encoded:
        """Encodes one bucket. Several threads may encode different buckets at a time.

        Args:
            bucket: whose.
            flat: its gradient, which is scratch space until the bucket is decoded.
            step: the number of the step.
            usage: the parameters that this rank did not use. Runs use all of them.

        Raises:
            CodecError: a codec cannot carry the gradient.
        """

    @abstractmethod
    def exchange(self, bucket: Bucket, encoded: Encoded, step: int) -> Received:
        """Sends and receives.

        Ranks begin all that they do together here, where it has one order. What `gather` returned
        may be read in `decode`, unless other operations of the collective follow it.

        Those of `comm_types.REPEATING` may exchange again what `encode` made, among other ranks.

        Raises:
            NotFiniteSum: the gradient of some rank is not finite; all ranks raise it.
            TransportError: a rank did not take part.
        """

    @abstractmethod
    def decode(
        self, bucket: Bucket, received: Received, step: int, out: Float[Tensor, " n"]
    ) -> None:
        """Replaces `out` by the mean. It may be the tensor that was encoded.

        Raises:
            FrameError: what came is not the gradient of this bucket and step.
        """

    def sent_bytes(self, encoded: Encoded, received: Received) -> int:
        """Returns how many bytes this rank gave for a bucket."""
        raise NotImplementedError(f"{type(self).__name__} does not count its bytes")

    def take_back(self, bucket: Bucket, encoded: Encoded, device: torch.device) -> None:
        """Gives the memory what was encoded and never counts. Only what repeats has it.

        Args:
            bucket: whose.
            encoded: what `encode` made, also where it was exchanged.
            device: of the gradient.
        """
        raise NotImplementedError(f"{type(self).__name__} does not repeat")

    def prepare(self, bucket: Bucket, device: torch.device) -> None:
        """Makes the state of a bucket that was never encoded, where there is a state."""
        del bucket, device  # most have none

    def state_dict(self) -> dict[str, Tensor]:
        """Returns what a checkpoint must hold beside memories, alike on all ranks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces the state by what `state_dict` returned, of this or another reduction.

        Raises:
            CheckpointError: it cannot be that.
        """
        del state  # most have no use for it
