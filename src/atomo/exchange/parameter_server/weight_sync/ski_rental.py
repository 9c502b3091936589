"""Ski rental: the decision to pay for a switch that makes each later step cheaper."""

from typing import final

__all__ = ["SkiRental"]


@final
class SkiRental:
    """Switches once the excess cost of the current choice exceeds the cost of the switch.

    This is the ski-rental rule of Karlin et al., "Competitive Snoopy Caching", 1988: the total cost
    is at most about twice the cost of the best choices with knowledge of the future.
    """

    def __init__(self) -> None:
        self._regret = 0.0

    def should_keep(self, current_cost: int, other_cost: int, switch_cost: int) -> bool:
        """True to keep the current choice for one more step; False to switch, which resets the
        excess cost.

        Args:
            current_cost: cost of the step with the current choice, bytes.
            other_cost: cost of the step with the other choice, bytes.
            switch_cost: cost of the switch, bytes.
        """
        self._regret = max(0.0, self._regret + current_cost - other_cost)
        if self._regret <= switch_cost:
            return True
        self._regret = 0.0
        return False
