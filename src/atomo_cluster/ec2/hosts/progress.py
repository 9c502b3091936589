"""Progress of steps that run on all hosts in parallel."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final, final

from atomo_cluster.ec2.hosts.ssh import Host, on_all_hosts
from atomo_cluster.errors import RemoteError

__all__ = ["Steps"]

WAITING, BUSY, DONE, FAILED = "", "...", "done", "FAILED"
PER_S: Final = 4


@final
class Steps:
    """Runs steps on hosts. On a terminal a table shows progress; elsewhere each step is a line."""

    def __init__(self, hosts: Sequence[Host], names: Sequence[str], say: Callable[[str], None]):
        from rich.live import Live  # commands that show no table start without it

        from atomo_cluster.ec2.invocation.console import console_on

        self._hosts, self._names, self._say = hosts, names, say
        self._cells = {(host.id, name): WAITING for host in hosts for name in names}
        self._lock = Lock()
        console = console_on(errors=True)
        self._live = Live(get_renderable=self.table, console=console, refresh_per_second=PER_S)
        self._shown = console.is_terminal

    def __enter__(self) -> "Steps":
        if self._shown:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._live.stop()

    def on(self, hosts: Sequence[Host], name: str, act: Callable[[Host], object]) -> None:
        """Runs one step on hosts in parallel, each to its end.

        Raises:
            RemoteError: the step failed on a host; the message has all failures.
        """

        def guarded(host: Host) -> str:
            self._mark(host, name, BUSY)
            try:
                act(host)
            except RemoteError as error:
                self._mark(host, name, FAILED)
                return str(error)
            self._mark(host, name, DONE)
            return ""

        failures = [failure for failure in on_all_hosts(hosts, guarded) if failure]
        if failures:
            listed = "".join(f"\n  {failure}" for failure in failures)
            raise RemoteError(f"{name} failed on {len(failures)} of {len(hosts)} hosts:{listed}")

    def table(self) -> Any:
        """Returns the rich table of the hosts' progress."""
        from rich.table import Table

        table = Table("host", *self._names)
        with self._lock:
            for host in self._hosts:
                table.add_row(host.name, *(self._cells[host.id, name] for name in self._names))
        return table

    def _mark(self, host: Host, name: str, state: str) -> None:
        with self._lock:
            self._cells[host.id, name] = state
            if not self._shown and state != BUSY:
                self._say(f"{host.name:24}{name:14}{state}")
