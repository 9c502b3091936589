"""The money of a supervised cluster: its ledger on the master, its bill, and its budget."""

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, final

from atomo_cluster.ec2.aws.inventory import ENDED, LIVE, Instance, instances
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.launch.plan import Plan
from atomo_cluster.ec2.money.budget import check_replacement
from atomo_cluster.ec2.money.costs import Bill, bill, bound_entry, cost_except
from atomo_cluster.ec2.money.ledger import LedgerEntry, read_entries, record_entries
from atomo_cluster.ec2.money.prices import Prices, prices, sum_known
from atomo_cluster.errors import CloudError, ConfigError

__all__ = ["Accounts"]

PRICES_LAST: Final = timedelta(minutes=10)


@final
class Accounts:
    """The costs of a cluster as its master counts them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._prices: tuple[datetime, Prices] | None = None

    def bill(self, now: datetime) -> Bill:
        """Returns the cost of the cluster; if AWS does not answer, from the ledger alone."""
        run = self._run
        with suppress(CloudError):
            self.record(instances(run.aws, run.owned, [*LIVE, *ENDED]), now)
        return bill(self._entries(), now)

    def record(self, hosts: list[Instance], now: datetime) -> None:
        """Records hosts in the ledger, with upper bounds on their prices."""
        settings = self._run.cluster
        prices_now = self._known({host.type for host in hosts}, now)
        listed = [bound_entry(host, prices_now, settings, now) for host in hosts]
        with suppress(ConfigError):  # a full disk is no reason to look no further
            record_entries(settings, self._run.owned.owner, listed)

    def affordable(self, plan: Plan, limit: float | None, now: datetime) -> Plan:
        """Returns the plan with the attempts that keep the cluster within a limit.

        Raises:
            CloudError: a cost is unknown.
            NotReady: no attempt is within the limit.
        """
        if limit is None:
            return plan
        self.bill(now)
        spent = cost_except(self._entries(), plan.running, now)
        cheap = [attempt for attempt in plan.attempts
                 if (bound := sum_known([spent, plan.total_of(attempt)])) is not None
                 and bound <= limit]  # fmt: skip
        if not cheap:
            check_replacement(limit, [spent, plan.total])
        return replace(plan, attempts=tuple(cheap))

    def _entries(self) -> list[LedgerEntry]:
        return list(read_entries(self._run.cluster, self._run.owned.owner).values())

    def _known(self, types: set[str], now: datetime) -> Prices:
        """Returns cached list prices; if one is unknown, all are fetched again."""
        if self._prices is not None:
            fetched, cached = self._prices
            if now - fetched < PRICES_LAST and cached.tell(types):
                return cached
        self._prices = now, prices(self._run.aws, types, (), ())
        return self._prices[1]
