"""The hosts of a SLURM allocation, read from environment variables.

`SLURM_JOB_NODELIST` is a compressed list of the nodes, `n[1-3,7]`, which `scontrol` expands.
`SLURM_TASKS_PER_NODE` has the number of tasks of each node, `2(x3),1`.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from typing import Final

from atomo.errors import ConfigError
from atomo.launch.jobs.hosts import Host

__all__ = ["SRUN", "allocated_hosts", "count_tasks", "tasks_per_node"]

# The words before a host and a command for its shell, as with ssh. The daemons of mpirun hold all
# resources of the allocation, and a step without --overlap would wait for them.
SRUN: Final = (
    "sh", "-c",
    'exec srun --overlap --nodes=1 --ntasks=1 --cpu-bind=none --quiet -w "$0" sh -c "$1"',
)  # fmt: skip
COUNT: Final = re.compile(r"([1-9][0-9]{0,5})(?:\(x([1-9][0-9]{0,5})\))?")
PATIENCE_S: Final = 60.0  # a generous limit: scontrol expands a list without asking a server


def allocated_hosts(environment: Mapping[str, str] = os.environ) -> list[Host]:
    """Returns the nodes of the allocation that this process is in, each with its number of tasks.

    Args:
        environment: the environment variables of the process.

    Raises:
        ConfigError: the process is in no allocation, or srun has started it several times.
    """
    nodes = environment.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise ConfigError(
            "--slurm: there is no SLURM allocation here (SLURM_JOB_NODELIST is not set): run the "
            "command in a script for sbatch, or after "
            "`salloc --nodes=4 --ntasks-per-node=1`"
        )
    copies = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if copies != "1":
        raise ConfigError(
            f"--slurm: srun has started this command {copies} times, and each would start the "
            "whole job: run it without srun, in the script for sbatch or the shell of salloc"
        )
    names = expand_node_list(nodes)
    counts = tasks_per_node(environment.get("SLURM_TASKS_PER_NODE", f"1(x{len(names)})"))
    if len(counts) != len(names):
        raise ConfigError(
            f"--slurm: SLURM_TASKS_PER_NODE counts {len(counts)} nodes, and SLURM_JOB_NODELIST, "
            f"{nodes}, has {len(names)}"
        )
    return [Host(name, count) for name, count in zip(names, counts, strict=True)]


def count_tasks() -> int:
    """Counts the tasks of the allocation that this process is in.

    Raises:
        ConfigError: the process is in no allocation, or in one with a single task.
    """
    tasks = sum(host.slots or 1 for host in allocated_hosts())
    if tasks == 1:
        raise ConfigError(
            "--slurm: the allocation has one task, and a job has a master and workers: ask SLURM "
            "for more with --ntasks or --ntasks-per-node"
        )
    return tasks


def tasks_per_node(text: str) -> list[int]:
    """Counts the tasks of each node.

    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]

    Raises:
        ConfigError: the text is no such list.
    """
    parts = [COUNT.fullmatch(part) for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"SLURM_TASKS_PER_NODE={text!r} is not a list such as 2(x3),1")
    return [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))]


@cache
def expand_node_list(nodes: str) -> list[str]:
    """Expands a compressed list of node names.

    Raises:
        ConfigError: there is no scontrol, or it cannot read the list.
    """
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        names = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        ).stdout.split()
    except FileNotFoundError as error:
        raise ConfigError(
            "--slurm: there is no scontrol on the PATH, which expands the node list "
            f"SLURM_JOB_NODELIST={nodes}; it comes with SLURM's client commands"
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise ConfigError(f"--slurm: `{' '.join(command)}`: {str(reason).strip()}") from error
    if not names:
        raise ConfigError(f"--slurm: SLURM_JOB_NODELIST={nodes} names no node")
    return names
