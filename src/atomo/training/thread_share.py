"""Number of threads of each rank, so that all ranks together keep every core busy, once.

Ranks share cores if they share a kernel and may run on the same cores: processes of one host, and
hosts that are containers or virtual machines on one machine. Host names do not show this: two such
hosts that each took all cores would wait for each other's threads at every operation.
"""

import os
import socket
from pathlib import Path
from typing import Final

import numpy as np

from atomo.config.comm_rules import has_master
from atomo.exchange import Direct
from atomo.transports import Transport

__all__ = ["share_of_cores"]

KERNEL: Final = Path("/proc/sys/kernel/random/boot_id")  # of Linux; new at each boot


def share_of_cores(comm_type: str, transport: Transport, timeout_s: float, spares: int = 0) -> int:
    """Threads for this rank: its cores over the ranks that compute on them.

    A master mostly waits while workers compute, and is not one of them; nor is a spare.

    Args:
        comm_type: says whether there is a master.
        transport: connects the ranks, every one of which calls this.
        timeout_s: the longest wait for one of them.
        spares: how many ranks, the last, wait.

    Raises:
        TransportError: a rank is gone, or does not answer.
    """
    mine = usable_cores()
    key = np.frombuffer(f"{kernel()} {mine}".encode(), np.uint8)
    keys = [*Direct(transport, timeout_s).gather(key, "the cores of the ranks")]
    beside = [rank for rank, other in enumerate(keys) if np.array_equal(other, key)]
    first = 1 if has_master(comm_type) else 0
    computing = [rank for rank in beside if first <= rank < transport.size - spares]
    return max(1, len(mine) // max(1, len(computing)))


def usable_cores() -> list[int]:
    """Returns the cores that this process may run on; all cores if the system cannot say."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def kernel() -> str:
    """Returns a name that tells kernels apart."""
    return KERNEL.read_text().strip() if KERNEL.exists() else socket.gethostname()
