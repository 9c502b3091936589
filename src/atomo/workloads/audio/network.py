"""Two convolutions over time, five layers of LSTMs in both directions, and a class."""

from typing import final

from jaxtyping import Float
from torch import Tensor
from torch.nn import LSTM, BatchNorm1d, Conv1d, Linear, Module, ReLU, Sequential

__all__ = ["ConvBiLSTM"]

LAYERS = 5
WIDTH = 5  # frames that a convolution sees


@final
class ConvBiLSTM(Module):
    """Scores of classes, from the mean over time of the last layer's outputs."""

    def __init__(self, coefficients: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.convolutions = Sequential(
            BatchNorm1d(coefficients, affine=False),  # coefficients differ in scale by a hundred
            Conv1d(coefficients, hidden, WIDTH, padding=WIDTH // 2),
            ReLU(),
            Conv1d(hidden, hidden, WIDTH, padding=WIDTH // 2),
            ReLU(),
        )
        self.lstm = LSTM(hidden, hidden, LAYERS, batch_first=True, bidirectional=True)
        self.head = Linear(2 * hidden, classes)

    def forward(self, coefficients: Float[Tensor, "b c t"]) -> Float[Tensor, "b k"]:
        outputs, _ = self.lstm(self.convolutions(coefficients).transpose(1, 2))
        scores: Tensor = self.head(outputs.mean(1))
        return scores
