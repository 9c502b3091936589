"""Channels that send tensors from GPU to GPU without a copy to the host.

Frames cannot use them: a frame is compressed, checksummed and checked on the host. A dense sum
needs none of this and is as long as the gradient.
"""

from abc import ABC, abstractmethod

from torch import Tensor

__all__ = ["DeviceChannel"]


class DeviceChannel(ABC):
    """A channel that sends tensors as they are, in order between any two ranks. Abstract;
    subclasses are final.

    Messages have no header and are not checked: both ends know dtype and size.
    """

    @abstractmethod
    def send(self, to: int, values: Tensor, label: str) -> None:
        """Starts sending and returns. `values` must not change until `drain` has returned.

        Args:
            to: a rank.
            values: contiguous.
            label: name of the message, equal at both ends; a receive under another name does not
                match.
        """

    @abstractmethod
    def receive(self, source: int, values: Tensor, timeout_s: float, label: str) -> None:
        """Fills `values` with the tensor that rank `source` sends.

        Raises:
            DeadlineExpired: no message of that name arrived.
            PeerLost: the rank is gone.
        """

    @abstractmethod
    def drain(self, timeout_s: float) -> None:
        """Waits until everything sent has left.

        Raises:
            DeadlineExpired: a rank does not receive a message sent to it.
        """
