"""The hosts, as the supervisor monitors and changes them."""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, final

from atomo_cluster.ec2.aws.inventory import ENDED, LIVE, Instance, instances
from atomo_cluster.ec2.hosts.fuses import burn_fuse
from atomo_cluster.ec2.hosts.progress import Steps
from atomo_cluster.ec2.hosts.setup import SetupContext, bootstrap, run_commands
from atomo_cluster.ec2.hosts.ssh import Host
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.launch.launching import launch
from atomo_cluster.ec2.launch.plan import Plan, make_plan
from atomo_cluster.ec2.money.budget import check_replacement
from atomo_cluster.ec2.money.costs import Bill, bill, bound_entry, cost_except
from atomo_cluster.ec2.money.ledger import LedgerEntry, read_entries, record_entries
from atomo_cluster.ec2.money.prices import Prices, prices
from atomo_cluster.ec2.targets.selection import hosts_of, ssh_of, to_host
from atomo_cluster.errors import CloudError, ConfigError, NotReady

__all__ = ["HostPool"]

SILENT: Final = timedelta(seconds=60)  # a host that refuses ssh for so long is dead
PRICES_LAST: Final = timedelta(minutes=10)
PROBE_S: Final = 3.0
SHORTEST_H: Final = 0.2  # hours until the fuse, below which a new host is not worth its start
SSH: Final = 22
Reachable = Callable[[Instance], bool]


def answers(host: Instance) -> bool:
    """True if a host's sshd accepts connections."""
    address = (host.private_ip or "", SSH)
    with suppress(OSError), socket.create_connection(address, timeout=PROBE_S):
        return True
    return False


@final
class HostPool:
    """The cluster as seen from its master."""

    def __init__(
        self,
        run: Run,
        memory: Path,
        public: str,
        site: Callable[[Run, list[Host]], SetupContext],
        reachable: Reachable = answers,
    ) -> None:
        self._run, self._public = run, public
        self._notices = memory / "notices"  # hosts that EC2 takes back: see leave_job.sh
        self._unready = memory / "unready"  # hosts that were launched and not set up
        self._site, self._reachable = site, reachable
        self._mute: dict[str, datetime] = {}  # times since which hosts have not answered
        self.hosts: list[Instance] = []  # that run, the master first
        self.noticed = False  # True if EC2 takes a worker back, and the job has the notice
        self._prices: tuple[datetime, Prices] | None = None

    def look(self, now: datetime) -> tuple[str, ...]:
        """Updates the hosts and names those that are lost or interrupted; also missing workers.

        Raises:
            CloudError: AWS does not answer.
        """
        self.hosts = instances(self._run.aws, self._run.owned, ["pending", "running"])
        doomed = self._notices.read_text().split() if self._notices.exists() else []
        workers = [host for host in self.hosts if host.role != "master"]
        self.noticed = any(host.id in doomed for host in workers)
        doomed += self._unready.read_text().split() if self._unready.exists() else []
        going = [host.id for host in workers if host.id in doomed or self._silent(host, now)]
        missing = self._run.cluster.n_workers - len(workers)
        return (*going, *([f"{missing} of the workers"] if missing > 0 else ()))

    def _silent(self, host: Instance, now: datetime) -> bool:
        if self._reachable(host):
            self._mute.pop(host.id, None)
            return False
        return now - self._mute.setdefault(host.id, now) >= SILENT

    def master(self) -> Instance:
        """Returns the master, on which this process runs.

        Raises:
            CloudError: AWS knows of no master.
        """
        if not self.hosts or self.hosts[0].role != "master":
            raise CloudError("AWS knows of no running master of this cluster")
        return self.hosts[0]

    def bill(self, now: datetime) -> Bill:
        """Returns the cost of the cluster; if AWS does not answer, from the ledger alone."""
        run = self._run
        with suppress(CloudError):
            self._note(instances(run.aws, run.owned, [*LIVE, *ENDED]), now)
        return bill(self._noted(), now)

    def _note(self, hosts: list[Instance], now: datetime) -> None:
        """Records hosts in the ledger, with upper bounds on their prices."""
        settings = self._run.cluster
        prices_now = self._known({host.type for host in hosts}, now)
        listed = [bound_entry(host, prices_now, settings, now) for host in hosts]
        with suppress(ConfigError):  # the supervisor works on, even with a full disk
            record_entries(settings, self._run.owned.owner, listed)

    def _noted(self) -> list[LedgerEntry]:
        return list(read_entries(self._run.cluster, self._run.owned.owner).values())

    def _known(self, types: set[str], now: datetime) -> Prices:
        """Returns cached list prices; if one is unknown, all are fetched again."""
        if self._prices is not None:
            fetched, cached = self._prices
            if now - fetched < PRICES_LAST and cached.tell(types):
                return cached
        self._prices = now, prices(self._run.aws, types, (), ())
        return self._prices[1]

    def replace(self, lost: Sequence[str], now: datetime) -> list[Host]:
        """Ends lost hosts, launches the missing ones and sets them up; returns all hosts.

        New hosts have the fuse of the master, whatever `max_hours` says.

        Raises:
            NotReady: too little money or time is left.
            CloudError: AWS failed, and the launch is rolled back.
            RemoteError: a host could not be set up.
        """
        run, going = self._run, [host.id for host in self.hosts if host.id in lost]
        left_h = (self.master().fuse - now).total_seconds() / 3600
        if going:
            run.aws.call("ec2.terminate_instances", InstanceIds=going)
        if left_h < SHORTEST_H:
            raise NotReady(f"{left_h * 60:.0f} minutes are left until the fuse: no new hosts")
        shorter = replace(run.cluster, max_hours=left_h, max_usd=None)
        plan = replace(make_plan(run.aws, shorter, run.owned), admitted=self._public)
        self._check_budget(plan, now)
        before = {host.id for host in self.hosts}
        hosts = launch(run.aws, plan, None, run.say)
        self.hosts, fresh = hosts, {host.id for host in hosts} - before
        self._unready.write_text(" ".join(fresh))
        self._note(hosts, now)  # a host may end, and AWS not report it for long
        self.set_up(fresh)
        self._unready.unlink()
        return hosts_of(run, hosts)

    def set_up(self, fresh: set[str]) -> None:
        """Sets fresh hosts up and introduces them to the others.

        Raises:
            RemoteError: a step failed on a host.
        """
        hosts = hosts_of(self._run, self.hosts)
        site = self._site(self._run, hosts)
        new = [host for host in hosts if host.id in fresh]
        with Steps(hosts, (), self._run.say) as steps:
            bootstrap(site, steps, new)
            commands = self._run.cluster.pre_commands
            steps.on(new, "before", lambda host: run_commands(site, host, commands))

    def _check_budget(self, plan: Plan, now: datetime) -> None:
        limit = self._run.cluster.max_usd
        if limit is None:
            return
        self.bill(now)
        check_replacement(limit, [cost_except(self._noted(), plan.running, now), plan.total])

    def end(self, roles: Sequence[str]) -> list[str]:
        """Terminates the hosts of these roles, the master last.

        If AWS fails, their fuses are set to now, which ends them as well.

        Raises:
            CloudError: both failed for some hosts.
        """
        try:
            self.hosts = instances(self._run.aws, self._run.owned)
            ids = [host.id for host in reversed(self.hosts) if host.role in roles]
            if ids:
                self._run.aws.call("ec2.terminate_instances", InstanceIds=ids)
            return ids
        except CloudError as error:
            return self._burn(roles, error)

    def _burn(self, roles: Sequence[str], cause: CloudError) -> list[str]:
        """Ends hosts through their fuses, without AWS."""
        if not self.hosts:  # AWS has never listed the hosts
            raise cause
        all_hosts = [
            to_host(self._run, place, instance) for place, instance in enumerate(self.hosts)
        ]
        hosts = [host for host in reversed(all_hosts) if host.role in roles]
        ssh = ssh_of(self._run)
        answers = [burn_fuse(ssh, host) for host in hosts]  # all of them, also after a failure
        if any(answer.code for answer in answers):
            raise cause
        return [host.id for host in hosts]
