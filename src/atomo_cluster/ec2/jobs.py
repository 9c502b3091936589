"""Training on the cluster: starting it, seeing whether it runs, ending it."""

import shlex
from collections.abc import Sequence
from typing import Final

from atomo_cluster.ec2.config import Cluster

__all__ = ["BUSY", "DETACHED", "KILL", "TAKEN", "leave_command", "train_command"]

# The brackets keep a pattern from matching the shell that looks for it.
LAUNCHER: Final = "[-]m atomo train"
BUSY: Final = "pgrep -f -- '[-]m atomo (train|rank)' >/dev/null"
KILL: Final = """\
pkill -TERM -u "$(id -u)" -x 'python[0-9.]*' || exit 0
for second in 1 2 3 4 5 6 7 8 9 10; do
  pgrep -u "$(id -u)" -x 'python[0-9.]*' >/dev/null || exit 0
  sleep 1
done
pkill -KILL -u "$(id -u)" -x 'python[0-9.]*' || true"""
# Held by whatever descends from the shell that took it, so it ends with the training.
LOCK: Final = ".train.lock"
TAKEN: Final = 75  # the exit code where another training holds it: EX_TEMPFAIL of sysexits.h
DETACHED: Final = "train.log"


def train_command(
    cluster: Cluster, hosts: int, network: str, words: Sequence[str], detach: bool
) -> str:
    """The shell command that trains, for the master.

    `network` is the CIDR that MPI keeps to: images bring bridges, such as Docker's, that all hosts
    have with the same address, and MPI would hang on them. What `words` says wins.
    """
    given = {word.partition("=")[0] for word in words}
    options = [] if "--n" in given else ["--n", str(hosts)]
    options += [] if "--hostfile" in given else ["--hostfile", "hosts_address"]
    options += [] if "--train-dir" in given else ["--train-dir", f"{cluster.out_dir}/train"]
    if network and "--mpi-args" not in given:
        keep = f"--mca btl_tcp_if_include {network} --prtemca prte_if_include {network}"
        options += [f"--mpi-args={keep}"]
    line = shlex.join(["bash", "run_pytorch.sh", *options, *words])
    commands = [*cluster.master_pre_commands, *(cluster.train_commands or [line])]
    script = shlex.quote("\n".join(["set -e", *commands]))
    alone = f"exec 9>>{LOCK} && {{ flock -n 9 || exit {TAKEN}; }}"
    folder = f"cd {cluster.remote_dir} && {alone}"
    if not detach:
        return f"{folder} && exec bash -c {script}"
    return f"{folder} && {{ setsid nohup bash -c {script} >{DETACHED} 2>&1 </dev/null & }}"


def leave_command(wait_s: int) -> str:
    """The shell command that has a training on this host write a checkpoint and end.

    Only its launcher is told, which tells the ranks: a rank that is killed takes the run with it.
    """
    return f"""\
job=(-u "$(id -u)" -f -- '{LAUNCHER}')
pgrep "${{job[@]}}" >/dev/null || exit 0
pkill -TERM "${{job[@]}}"
for ((second = 0; second < {wait_s}; second++)); do
  pgrep "${{job[@]}}" >/dev/null || exit 0
  sleep 1
done
echo "the training has not ended within {wait_s} s" >&2
exit {TAKEN}"""
