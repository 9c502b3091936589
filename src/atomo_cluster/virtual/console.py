"""A command on a host, as from its console: it needs no network and no sshd."""

import os
import signal
from collections.abc import Sequence

from atomo_cluster.virtual.host import as_owner
from atomo_cluster.virtual.namespaces import enter
from atomo_cluster.virtual.spec import ClusterFolder, VirtualCluster, VirtualHost

__all__ = ["execute"]

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
             signal.SIGUSR2)  # fmt: skip
FROM_KERNEL = 0x80  # si_code of signals of a terminal, which the command gets as well
NOT_FOUND, SIGNALLED = 127, 128  # exit codes as a shell has them


def execute(
    place: ClusterFolder,
    cluster: VirtualCluster,
    host: VirtualHost,
    pid: int,
    command: Sequence[str],
) -> int:
    """Runs a command in the namespaces of `pid`, in this folder and environment; its exit code."""
    folder = os.getcwd()
    enter(pid, "user", "net", "uts", "mnt", "pid")
    os.chdir(folder)  # entering a mount namespace led to its root
    os.environ["TMPDIR"] = str(place.of(host.name) / "tmp")
    signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        replace_process([*as_owner(cluster), *command])
    return wait_forwarding(child)


def replace_process(command: list[str]) -> None:
    """Replaces this process by the command."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*PASSED_ON, signal.SIGCHLD})
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(NOT_FOUND)


def wait_forwarding(child: int) -> int:
    """Forwards signals until the child has ended; returns its exit code."""
    while True:
        signal_info = signal.sigwaitinfo({*PASSED_ON, signal.SIGCHLD})
        if signal_info.si_signo != signal.SIGCHLD:
            if signal_info.si_code != FROM_KERNEL:
                os.kill(child, signal_info.si_signo)
            continue
        done, result = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(result)
            return code if code >= 0 else SIGNALLED - code
