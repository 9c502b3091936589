"""From the memory of one GPU to that of another, where what lies between takes it there itself.

Frames have no use for this: they are compressed, get a checksum and are checked on hosts. What is
dense and added up as it is has none of that to do, and is as long as the gradient.
"""

from abc import ABC, abstractmethod

from torch import Tensor

__all__ = ["DeviceLane"]


class DeviceLane(ABC):
    """Moves tensors as they lie, in order between any two ranks. Abstract; subclasses are final.

    Nothing is said of what comes, and nothing is checked: both ends know its dtype and size.
    """

    @abstractmethod
    def send(self, to: int, values: Tensor, what: str) -> None:
        """Starts sending and returns; `values` must not change until `drain` returned.

        Args:
            to: a rank.
            values: contiguous.
            what: names it, the same at both ends: under another name it does not arrive.
        """

    @abstractmethod
    def receive(self, source: int, values: Tensor, timeout_s: float, what: str) -> None:
        """Fills `values` with what rank `source` has sent.

        Raises:
            DeadlineExpired: nothing of that name came.
            PeerLost: the rank is gone.
        """

    @abstractmethod
    def drain(self, timeout_s: float) -> None:
        """Waits until everything sent has left.

        Raises:
            DeadlineExpired: somebody does not take it.
        """
