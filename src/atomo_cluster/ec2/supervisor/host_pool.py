"""The hosts, as the supervisor monitors and changes them."""

import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, final

from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.hosts.fuses import burn_fuse, earliest, local_deadline
from atomo_cluster.ec2.hosts.progress import Steps
from atomo_cluster.ec2.hosts.setup import SetupContext, bootstrap, run_commands
from atomo_cluster.ec2.hosts.ssh import Host
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.launch.capacity import QUOTAS
from atomo_cluster.ec2.launch.launching import launch
from atomo_cluster.ec2.launch.lock import launch_lock
from atomo_cluster.ec2.launch.plan import Plan, make_plan
from atomo_cluster.ec2.launch.replacements import one_each, with_replacements
from atomo_cluster.ec2.money.costs import Bill
from atomo_cluster.ec2.places.aws_ends import create_schedules
from atomo_cluster.ec2.supervisor.accounts import Accounts
from atomo_cluster.ec2.supervisor.background import Background, in_thread
from atomo_cluster.ec2.targets.selection import hosts_of, ssh_of, to_host
from atomo_cluster.errors import CloudError, NotReady, RemoteError
from atomo_cluster.plain_files import is_plain, replace_plain

__all__ = ["HostPool"]

SILENT: Final = timedelta(seconds=60)  # a host that refuses ssh for so long is dead
PROBE_S: Final = 3.0
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
        background: Background = in_thread,
    ) -> None:
        self._run, self._public, self._accounts = run, public, Accounts(run)
        self._notices = memory / "notices"  # hosts that EC2 takes back: see leave_job.sh
        # Hosts that were there before a launch; while the file exists, all others are not set up.
        self._settled = memory / "settled"
        self._site, self._reachable, self._background = site, reachable, background
        self._setup: Future[None] | None = None
        self._mute: dict[str, datetime] = {}  # times since which hosts have not answered
        self.hosts: list[Instance] = []  # that run, the master first
        self.ready: list[Instance] = []  # those on which a job can start now
        self.going: tuple[str, ...] = ()  # workers that nobody can use any more
        self.noticed: tuple[str, ...] = ()  # those of them of which EC2 has told the job
        self.missing = 0  # workers to launch

    @property
    def preparing(self) -> bool:
        """True while new hosts are set up."""
        return self._setup is not None

    def look(self, now: datetime) -> None:
        """Updates the hosts.

        Raises:
            CloudError: AWS does not answer; no host is going then, and none is missing.
        """
        self.going, self.noticed, self.missing = (), (), 0
        self.hosts = instances(self._run.aws, self._run.owned, ["pending", "running"])
        workers = [host for host in self.hosts if host.role != "master"]
        taken, fresh = set(words_in(self._notices)), self._unready()
        settled = [host for host in workers if host.id not in fresh]  # others still boot
        silent = [host.id for host in settled if self._silent(host, now)]
        doomed = {*taken, *silent, *(() if self.preparing else fresh)}
        self.noticed = tuple(host.id for host in workers if host.id in taken)
        self.going = tuple(host.id for host in workers if host.id in doomed)
        self.missing = max(0, self._run.cluster.n_workers - len(workers) + len(self.going))
        unusable = {*doomed, *fresh, *self._mute}
        self.ready = [host for host in self.hosts if host.id not in unusable]

    def _silent(self, host: Instance, now: datetime) -> bool:
        if self._reachable(host):
            self._mute.pop(host.id, None)
            return False
        return now - self._mute.setdefault(host.id, now) >= SILENT

    def _unready(self) -> set[str]:
        """Returns the hosts of a launch that are not set up, also after a failure or a restart."""
        if not self._settled.exists():
            return set()
        fresh = {host.id for host in self.hosts} - set(words_in(self._settled))
        if not fresh and not self.preparing:
            self._settled.unlink()
        return fresh

    def master(self) -> Instance:
        """Returns the master, on which this process runs, with the earlier of its tag's fuse and
        the deadline on its disk: the tag may promise more than the host keeps.

        Raises:
            CloudError: AWS knows of no master.
        """
        if not self.hosts or self.hosts[0].role != "master":
            raise CloudError("AWS knows of no running master of this cluster")
        known = earliest(self.hosts[0], local_deadline())
        return known.with_fuse(self._run.cluster.max_hours)

    def bill(self, now: datetime) -> Bill:
        """Returns the cost of the cluster; if AWS does not answer, from the ledger alone."""
        return self._accounts.bill(now)

    def drop(self, ids: Sequence[str]) -> None:
        """Ends hosts that nobody can use.

        Raises:
            CloudError: AWS refused.
        """
        self._run.aws.call("ec2.terminate_instances", InstanceIds=list(ids))

    def launch(self, now: datetime) -> list[str]:
        """Launches the missing workers and begins to set them up; returns their identifiers.

        New hosts have the fuse of the master, whatever `max_hours` says.

        Raises:
            NotReady: too little money is left.
            CloudError: AWS failed, and the launch is rolled back; or a person launches here.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(launch_lock(self._run.given.state, self._run.given.name))
            except NotReady as error:  # which passes, unlike a lack of money
                raise CloudError(str(error)) from error
            return self._launch(now)

    def _launch(self, now: datetime) -> list[str]:
        """Launches the missing workers, as far as AWS has them."""
        run = self._run
        left_h = (self.master().fuse - now).total_seconds() / 3600
        shorter = replace(run.cluster, max_hours=left_h, max_usd=None)
        wanted = replace(make_plan(run.aws, shorter, run.owned), admitted=self._public)
        if not wanted.groups:
            raise CloudError("AWS still lists hosts that were ordered to end")
        plan = self._accounts.affordable(
            with_replacements(run.aws, wanted), run.cluster.max_usd, now
        )
        before = {host.id for host in self.hosts}
        replace_plain(self._settled, " ".join(before))
        self.hosts = self._launch_some(plan)
        self._accounts.record(self.hosts, now)  # one may end, and AWS not say so for long
        fresh = [host for host in self.hosts if host.id not in before]
        if error := create_schedules(run.aws, run.cluster, run.owned, fresh):
            run.warn(f"{words(fresh)}: without an end by AWS, beside their fuses: {error}")
        self._setup = self._background(lambda: self._set_up({host.id for host in fresh}))
        return [host.id for host in fresh]

    def _launch_some(self, plan: Plan) -> list[Instance]:
        """Launches the hosts of a plan, or where the account has no room for all of them, one."""
        run = self._run
        try:
            return launch(run.aws, plan, None, run.say)
        except CloudError as error:
            if error.code not in QUOTAS or sum(group.count for group in plan.groups) == 1:
                raise
            return launch(run.aws, one_each(plan), None, run.say)

    def prepared(self) -> list[Instance]:
        """Returns the whole cluster once the setup of new hosts is complete; empty: it is not.

        Raises:
            Exception: it failed; the new hosts are going.
        """
        if self._setup is None or not self._setup.done():
            return []
        setup, self._setup = self._setup, None
        setup.result()  # unbounded: it is done
        self._settled.unlink(missing_ok=True)
        return self.hosts

    def _set_up(self, fresh: set[str]) -> None:
        """Sets fresh hosts up and introduces them to the others, of which one may go meanwhile.

        Raises:
            RemoteError: a step failed on a host, twice.
        """
        try:
            self.set_up(fresh)
        except RemoteError:
            self.set_up(fresh)

    def set_up(self, fresh: Iterable[str]) -> None:
        """Runs `bootstrap` on fresh hosts, and introduces them to the hosts that answer.

        Raises:
            RemoteError: a step failed on a host.
        """
        usable = [
            host
            for host in self.hosts
            if host.id in fresh or host.role == "master" or self._reachable(host)
        ]
        hosts = hosts_of(self._run, usable)
        site = self._site(self._run, hosts)
        new = [host for host in hosts if host.id in fresh]
        with Steps(hosts, (), self._run.say) as steps:
            bootstrap(site, steps, new)
            commands = self._run.cluster.pre_commands
            steps.on(new, "before", lambda host: run_commands(site, host, commands))

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


def words(hosts: Iterable[Instance]) -> str:
    """Returns the identifiers of hosts as text."""
    return ", ".join(host.id for host in hosts)


def words_in(path: Path) -> list[str]:
    """Returns the words of a file; none if there is no file, or a link."""
    return path.read_text().split() if is_plain(path) else []
