"""Two convolutions over time, five layers of LSTMs in both directions, and a character a frame."""

from typing import Final, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import LSTM, Conv1d, Linear, Module
from torch.nn.functional import log_softmax, relu
from torch.nn.init import kaiming_normal_, orthogonal_
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from atomo.workloads.audio.ctc import silence_after_end

__all__ = ["FrameBiLSTM", "frames_after"]

LAYERS: Final = 5
WIDTH: Final = 5  # frames that a convolution sees
GAIN: Final = 4.0  # an LSTM's input and output gates, half open at first, let a quarter through


def frames_after(frames: int, stride: int) -> int:
    """Computes the number of frames that the network makes of a number of frames."""
    return -(-frames // stride)


@final
class FrameBiLSTM(Module):
    """A BiLSTM that computes log-probabilities of characters for each frame, blank first.

    The padding of a sample has no effect: its scores do not depend on the batch.
    """

    def __init__(self, coefficients: int, hidden: int, stride: int, characters: int) -> None:
        """Creates a network with first weights.

        Args:
            coefficients: of each frame.
            hidden: width of each convolution, and of each LSTM in each direction.
            stride: frames that become one.
            characters: the number of characters, without the blank.
        """
        super().__init__()
        self._stride = stride
        self.first = Conv1d(coefficients, hidden, WIDTH, stride, padding=WIDTH // 2)
        self.second = Conv1d(hidden, hidden, WIDTH, padding=WIDTH // 2)
        self.lstm = LSTM(hidden, hidden, LAYERS, batch_first=True, bidirectional=True)
        self.head = Linear(2 * hidden, 1 + characters)
        initialise_weights(self)

    def forward(
        self, coefficients: Float[Tensor, "b c t"], lengths: Int64[Tensor, " b"]
    ) -> Float[Tensor, "b s k"]:
        """Returns the scores of samples of `lengths` frames, each followed by zeros."""
        frames = (lengths + self._stride - 1) // self._stride
        first = relu(self.first(coefficients))
        inside = torch.arange(first.shape[2], device=lengths.device) < frames[:, None]
        second = relu(self.second(first * inside[:, None]))
        packed = pack_padded_sequence(
            second.transpose(1, 2), frames.cpu(), batch_first=True, enforce_sorted=False
        )
        outputs, _ = pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=first.shape[2]
        )
        return silence_after_end(log_softmax(self.head(outputs).float(), 2), inside)


@torch.no_grad()
def initialise_weights(network: FrameBiLSTM) -> None:
    """Draws first weights that keep a signal's size from layer to layer.

    With PyTorch's defaults, which shrink it, the network outputs only blanks for three times as
    many steps. Convolutions: He et al., 2015. LSTMs: Saxe et al., "Exact solutions to the nonlinear
    dynamics of learning", ICLR 2014, and gates that begin by remembering (Jozefowicz et al., 2015).
    """
    for convolution in (network.first, network.second):
        kaiming_normal_(convolution.weight, nonlinearity="relu")
    for name, values in network.lstm.named_parameters():
        _, forget, _, _ = gates = values.chunk(4)
        if values.dim() == 1:
            values.zero_()
            forget.fill_("ih" in name)  # of the two biases, which add up
            continue
        for gate in gates:
            orthogonal_(gate, GAIN if "ih" in name else 1)
