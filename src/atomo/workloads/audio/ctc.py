"""Texts without alignment: the loss over all alignments, and greedy decoding.

Graves et al., "Connectionist Temporal Classification", ICML 2006. Frames after the end of a sample
are blank with probability 1, which changes neither the loss nor the text: so scores need no
lengths.
"""

from typing import Final, final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import ctc_loss

from atomo.workloads.audio.alphabet import BLANK
from atomo.workloads.base import Objective

__all__ = ["CTC", "decode_greedy", "frames_needed", "silence_after_end"]

NEVER: Final = -1e30  # the logarithm of no probability; sums of it stay finite, and so do gradients


def frames_needed(numbers: Int64[Tensor, " n"]) -> int:
    """Returns the minimum number of frames of a text: a blank separates equal neighbours."""
    return len(numbers) + int((numbers[1:] == numbers[:-1]).sum())


def silence_after_end(
    scores: Float[Tensor, "b t k"], inside: Bool[Tensor, "b t"]
) -> Float[Tensor, "b t k"]:
    """Returns log-probabilities in which every frame outside `inside` is a certain blank."""
    silence = torch.full_like(scores[0, 0], NEVER)
    silence[BLANK] = 0
    return scores.where(inside[:, :, None], silence)


def decode_greedy(scores: Float[Tensor, "b t k"]) -> Int64[Tensor, "b t"]:
    """Returns the likeliest number of each frame, repeats and blanks left out, followed
    by zeros.
    """
    best = scores.argmax(2)
    emitted = best != BLANK
    emitted[:, 1:] &= best[:, 1:] != best[:, :-1]
    # Blanks and repeats go to an extra last place, which is cut off.
    places = torch.where(emitted, emitted.cumsum(1) - 1, best.shape[1])
    texts = best.new_zeros(len(best), best.shape[1] + 1).scatter_(1, places, best)
    return texts[:, :-1]


@final
class CTC(Objective):
    """Nats a character: the negative logarithm of the probability of each text, over its length.

    The reduction is the default of `torch.nn.CTCLoss`. An infinite loss is never replaced by zero
    (`zero_infinity`): a text with too few frames is refused when it is read.
    """

    def loss(
        self, outputs: Float[Tensor, "b t k"], targets: Int64[Tensor, "b n"]
    ) -> Float[Tensor, ""]:
        """Computes the loss in float32, in any precision of the network.

        Args:
            outputs: logarithms of probabilities, as `silence_after_end` returns them.
            targets: texts, followed by zeros. Numbers that the outputs do not have are left out.
        """
        spelled = (targets != BLANK) & (targets < outputs.shape[2])
        frames = torch.full((len(outputs),), outputs.shape[1])
        scores = outputs.float().transpose(0, 1)
        return ctc_loss(scores, targets[spelled], frames, spelled.sum(1).cpu(), BLANK)

    def right(self, outputs: Float[Tensor, "b t k"], targets: Int64[Tensor, "b n"]) -> Tensor:
        """Counts the texts that greedy decoding gets without an error."""
        texts = decode_greedy(outputs)
        width = max(texts.shape[1], targets.shape[1])
        decoded, expected = (
            torch.nn.functional.pad(numbers, (0, width - numbers.shape[1]))
            for numbers in (texts, targets)
        )
        return (decoded == expected).all(1).sum()
