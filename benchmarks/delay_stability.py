"""The largest learning rate at which error feedback with momentum is stable, on a quadratic.

    python benchmarks/delay_stability.py

Prints the table of docs/headlines.md: the learning rate in units of 1 / curvature. A codec that
sends the share 1 - b of what waits delays by b / (1 - b) steps. The columns are heavy-ball and
Nesterov momentum of 0.9; "all" keeps all momentum, "masked" the share of `MomentumState.in_time`
with a weight of 1.
"""

from typing import Final

import torch
from torch import Tensor

MOMENTUM: Final = 0.9
FORMS: Final = ("heavy-ball", "Nesterov")
DELAYS: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 9.0)


def main() -> None:
    """Prints a row for each delay."""
    columns = ("delay, steps", *(f"{form}, {kept}" for kept in ("all", "masked") for form in FORMS))
    print(f"| {' | '.join(columns)} |")
    print("| --- | --- | --- | --- | --- |")
    for delay in DELAYS:
        rates = [
            largest_rate(delay, kept, nesterov)
            for kept in (1.0, 1 / (1 + delay))
            for nesterov in (False, True)
        ]
        print(f"| {delay:g} | " + " | ".join(f"{rate:.2f}" for rate in rates) + " |")


def largest_rate(delay: float, kept: float, nesterov: bool) -> float:
    """Returns the largest rate up to which all rates are stable, at most 12."""
    rates = torch.logspace(-2.5, 1.08, 2000, dtype=torch.float64)
    steps = torch.stack([step(float(rate), delay, kept, nesterov) for rate in rates])
    stable = torch.linalg.eigvals(steps).abs().amax(dim=1) <= 1 + 1e-9
    first = int(stable.logical_not().int().argmax()) if not stable.all() else len(rates)
    return float(rates[max(first - 1, 0)])


def step(rate: float, delay: float, kept: float, nesterov: bool) -> Tensor:
    """Returns the matrix of a step on curvature 1: it maps the weight, u and v."""
    waits = delay / (1 + delay)
    weight, velocity, unsent = torch.eye(3, dtype=torch.float64)
    gradient = rate * weight
    velocity = MOMENTUM * velocity + gradient * (MOMENTUM if nesterov else 1.0)
    unsent = unsent + velocity + (gradient if nesterov else 0.0)
    return torch.stack((weight - (1 - waits) * unsent, kept * velocity, waits * unsent))


if __name__ == "__main__":
    main()
