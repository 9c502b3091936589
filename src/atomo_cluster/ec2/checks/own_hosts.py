"""`status` for hosts of --hostfile: reachability, hardware and load."""

from typing import Final

from atomo_cluster.ec2.hosts.keys import check_state
from atomo_cluster.ec2.hosts.ssh import Answer
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.invocation.tables import table
from atomo_cluster.ec2.jobs.job import BUSY
from atomo_cluster.ec2.targets.each_host import finish, on_each
from atomo_cluster.ec2.targets.selection import cluster_hosts

__all__ = ["show_own"]

# A word, the cores, the load of the last minute, the GPUs.
LOOK: Final = f"""\
if {BUSY}; then echo trains; else echo idle; fi
nproc
cut -d ' ' -f 1 /proc/loadavg
nvidia-smi --list-gpus 2>/dev/null | grep -c ^GPU || true"""
COLUMNS: Final = ("host", "address", "state", "cores", "load", "GPUs")


def show_own(run: Run) -> int:
    """Shows the hosts of --hostfile.

    Raises:
        RemoteError: a host does not respond; all hosts are shown before.
    """
    check_state(run.cluster)
    answers = on_each(run, cluster_hosts(run), LOOK)
    shown = table(run.cluster.name, COLUMNS)
    for answer in answers:
        shown.add_row(answer.host.name, answer.host.id, *cells(answer))
    run.show(shown)
    for answer in answers:
        if answer.code:
            run.say(f"{answer.host.name}: {answer.complaint()}")
    run.tell({"hosts": [host_record(answer) for answer in answers]})
    finish(answers)
    return 0


def cells(answer: Answer) -> list[str]:
    """Formats a host as cells of the table."""
    return ["no answer", "", "", ""] if answer.code else answer.out.split()


def host_record(answer: Answer) -> dict[str, object]:
    """Returns a host as a record for `--json`."""
    if answer.code:
        return {**vars(answer.host), "state": "unreached", "error": answer.complaint()}
    state, cores, load, gpus = answer.out.split()
    return {**vars(answer.host), "state": state, "cores": int(cores), "load": float(load),
            "gpus": int(gpus)}  # fmt: skip
