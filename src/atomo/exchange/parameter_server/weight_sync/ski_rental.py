"""Ski rental: when to pay for a change that makes each step cheaper."""

from typing import final

__all__ = ["SkiRental"]


@final
class SkiRental:
    """Rents until the rent that was too much would have bought: never twice what was best.

    The ski-rental rule (Karlin et al., "Competitive Snoopy Caching", 1988): whatever comes, the sum
    that is paid is at most about twice what knowing the future would have cost.
    """

    def __init__(self) -> None:
        self._regret = 0.0

    def should_keep(self, here: int, there: int, change: int) -> bool:
        """True to keep the current choice for one more step; False to change, which resets the
        account.

        Args:
            here: what the step costs without a change, bytes.
            there: what it would cost had the change been made before.
            change: what changing costs.
        """
        self._regret = max(0.0, self._regret + here - there)
        if self._regret <= change:
            return True
        self._regret = 0.0
        return False
