"""The largest learning rate at which error feedback with momentum is stable, on a quadratic.

    python benchmarks/delay_stability.py

Prints the table of docs/headlines.md: the learning rate in units of 1 / curvature. Gradients go
through memory `dgc` with momentum 0.9. A codec that sends the share 1 - b of what waits delays by
b / (1 - b) steps.
"""

from typing import Final

import torch

from atomo.memory.dgc import MomentumCorrection

DELAYS: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 9.0)
STEPS: Final = 300
RATES: Final = tuple(0.01 * 1.05**power for power in range(142))  # to 9.7
FORMS: Final = (
    ("heavy-ball, all momentum kept", False, False),
    ("heavy-ball, masked", False, True),
    ("Nesterov, all momentum kept", True, False),
    ("Nesterov, masked", True, True),
)


def main() -> None:
    """Prints a row for each delay."""
    columns = ("delay, steps", *(name for name, _, _ in FORMS))
    print(f"| {' | '.join(columns)} |")
    print("| --- " * len(columns) + "|")
    for delay in DELAYS:
        rates = [largest_rate(delay, nesterov, masking) for _, nesterov, masking in FORMS]
        print(f"| {delay:g} | " + " | ".join(f"{rate:.2f}" for rate in rates) + " |")


def largest_rate(delay: float, nesterov: bool, masking: bool) -> float:
    """Returns the largest rate up to which all rates end nearer to the minimum."""
    unstable = (rate for rate in RATES if not is_stable(rate, delay, nesterov, masking))
    return next(unstable, RATES[-1] * 1.05) / 1.05


def is_stable(rate: float, delay: float, nesterov: bool, masking: bool) -> bool:
    """True if a descent from 1 ends nearer to 0."""
    memory = MomentumCorrection(0.9, nesterov, masking)
    weight = torch.ones(1)
    for _ in range(STEPS):
        held = memory.hold(rate * weight, {"weight": weight.shape})
        sent = held / (1 + delay)
        held.sub_(sent)
        weight -= sent
    return bool(weight.abs() < 1)  # infinity and NaN are not


if __name__ == "__main__":
    main()
