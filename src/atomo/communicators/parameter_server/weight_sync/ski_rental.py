"""Whether to stay with what costs more now, when changing has a price of its own."""

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
        """Whether to go on as before for one more step. Otherwise the account begins anew.

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
