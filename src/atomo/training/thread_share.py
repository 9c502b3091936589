"""Number of threads of each rank: all ranks of a machine together have one thread for each core.

Ranks share cores if they share a kernel and may run on the same cores: processes of one host, and
hosts that are containers on one machine. Host names do not show this. If two such hosts each took
all cores, they would wait for each other's threads at every operation.
"""

import os
import socket
from pathlib import Path
from typing import Final

import numpy as np

from atomo.config.comm_rules import has_master
from atomo.exchange import Direct
from atomo.transports import Transport

__all__ = ["kernel", "share_of_cores"]

KERNEL: Final = Path("/proc/sys/kernel/random/boot_id")  # of Linux; new at each boot


def share_of_cores(comm_type: str, transport: Transport, timeout_s: float, spares: int = 0) -> int:
    """Returns the number of threads of this rank: its cores over the ranks that compute on them.

    A master is not counted, since it mostly waits while workers compute; nor is a spare.

    Args:
        comm_type: the communicator, with or without a master.
        transport: connects the ranks; all ranks must call this function.
        timeout_s: the longest wait for a rank.
        spares: number of spares, the ranks with the highest numbers.

    Raises:
        TransportError: a rank has ended, or does not answer.
    """
    cores = usable_cores()
    key = np.frombuffer(f"{kernel()} {cores}".encode(), np.uint8)
    keys = [*Direct(transport, timeout_s).gather(key, "the cores of the ranks")]
    beside = [rank for rank, peer_key in enumerate(keys) if np.array_equal(peer_key, key)]
    first = 1 if has_master(comm_type) else 0
    computing = [rank for rank in beside if first <= rank < transport.size - spares]
    return max(1, len(cores) // max(1, len(computing)))


def usable_cores() -> list[int]:
    """Returns the cores that this process may run on; all cores if the system cannot say."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def kernel() -> str:
    """Returns a name that is different for each running kernel."""
    return KERNEL.read_text().strip() if KERNEL.exists() else socket.gethostname()
