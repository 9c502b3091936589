"""The check that ranks are on the hosts that were asked for.

An mpirun that has not read a host file starts all ranks on its own host, and the job ends with 0:
hosts that were paid for are idle, and measured times are of one host.
"""

import socket

import numpy as np

from atomo.exchange import Direct
from atomo.training.job.requested_hosts import RequestedHosts
from atomo.training.thread_share import kernel
from atomo.transports import Transport

__all__ = ["check_spread"]


def check_spread(transport: Transport, requested: RequestedHosts, timeout_s: float) -> None:
    """Compares the hosts of the ranks with those that were asked for.

    Args:
        transport: connects the ranks. All ranks must call this function with the same numbers of
            ranks. Without numbers rank 0 knows enough by itself, and the others need not call.
        requested: the hosts that were asked for.
        timeout_s: the longest wait for a rank.

    Raises:
        ConfigError: on rank 0, which ends the job: the ranks are on other hosts.
        TransportError: a rank has ended, or does not answer.
    """
    if requested.ranks:
        hosts = host_names(transport, timeout_s)
    elif transport.local_size < transport.size:
        return
    else:
        hosts = [socket.gethostname()] * transport.size
    if transport.rank == 0:
        requested.check(hosts)


def host_names(transport: Transport, timeout_s: float) -> list[str]:
    """Returns the name of each rank's host; two hosts of one name get different ones."""
    own = np.frombuffer(f"{socket.gethostname()}\n{kernel()}".encode(), np.uint8)
    keys = Direct(transport, timeout_s).gather(own, "the hosts of the ranks")
    pairs = [bytes(key).decode(errors="replace").partition("\n")[::2] for key in keys]
    kernels: dict[str, list[str]] = {}
    names = []
    for name, booted in pairs:
        known = kernels.setdefault(name, [])
        if booted not in known:
            known.append(booted)
        number = known.index(booted)
        names.append(f"{name} ({number + 1})" if number else name)
    return names
