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
`comm_types.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.communicators.collective import Collective
from atomo.communicators.exchange import Compressor
from atomo.communicators.report import Report
from atomo.fusion import Bucket

__all__ = ["Communicator", "Exchanged", "Finish", "Reduction"]

Encoded = TypeVar("Encoded")
Finish = Callable[[Float[Tensor, " n"]], None]
"""Adds the mean of a bucket to a flat tensor of its size, once the others' have come."""


@final
@dataclass(frozen=True)
class Exchanged:
    """What `average` says about a step."""

    reports: Mapping[int, Report]
    """Of every rank whose gradient counted, in order."""
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


class Reduction(ABC, Generic[Encoded]):
    """How one bucket gets from n gradients to their mean. Abstract; subclasses are final."""

    memories: ClassVar[tuple[str, ...]] = ()
    """Memories that it works with, the default first. Empty: the codec decides."""
    momentum_memory: ClassVar[str | None] = None
    """The default where the optimiser has momentum, if it is another."""

    @abstractmethod
    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        """A reduction over all ranks of `collective`, of what `compressor` makes of gradients."""

    @staticmethod
    @abstractmethod
    def fitted(codec: Codec[Any]) -> Codec[Any]:
        """The codec as it is used here.

        Raises:
            ConfigError: it does not go with this; the message says what does.
        """

    @classmethod
    def default_memory(cls, momentum: float) -> str | None:
        """The memory that it takes with this momentum of the optimiser; None: the codec decides."""
        plain = cls.memories[0] if cls.memories else None
        return cls.momentum_memory if momentum and cls.momentum_memory else plain

    @abstractmethod
    def encode(self, bucket: Bucket, flat: Float[Tensor, " n"], step: int) -> Encoded:
        """Encodes one bucket. Several threads may encode different buckets at once.

        Raises:
            CodecError: a codec cannot carry the gradient.
        """

    @abstractmethod
    def start(self, bucket: Bucket, encoded: Encoded, step: int) -> Finish:
        """Begins to send one bucket, where that needs nobody else. Buckets start in their order.

        Those of `comm_types.REPEATING` may be started again with what `encode` made, which is then
        exchanged anew, among others.

        Returns:
            What waits for the others. It may run in another thread, beside the start of the next
            bucket, and runs in the order of the buckets.
        """

    def take_back(self, bucket: Bucket, encoded: Encoded, device: torch.device) -> None:
        """What was encoded never counts: the memory gets it, if it feeds back. Of those that
        repeat.

        Args:
            bucket: whose.
            encoded: what `encode` made, also where it was exchanged.
            device: of the gradient.
        """
        raise NotImplementedError(f"{type(self).__name__} does not repeat")

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must hold beside memories, alike on all ranks: for most, nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces it by what `state_dict` returned, of this or another reduction.

        Raises:
            CheckpointError: it cannot be that.
        """
        del state  # most have no use for it
