"""`list_idle_instances`: lists the hosts without a training."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.jobs.job import BUSY
from atomo_cluster.ec2.targets.each_host import on_each
from atomo_cluster.ec2.targets.selection import owners_hosts

HELP: Final = """\
  pytorch_ec2.py list_idle_instances
  pytorch_ec2.py list_idle_instances --json

Asks every host of your clusters in the region whether a training runs on it. Hosts that cannot
be asked are listed as unknown."""

STATES: Final = {0: "busy", 1: "idle"}


def arguments(parser: ArgumentParser) -> None:
    """Adds no options."""
    parser.set_defaults(hostfile=None)


def run(run: Run) -> int:
    answers = on_each(run, owners_hosts(run), BUSY)
    states = {answer.host.id: STATES.get(answer.code, "unknown") for answer in answers}
    for answer in answers:
        state = states[answer.host.id]
        why = f": {answer.complaint()}" if state == "unknown" else ""
        if state != "busy":
            run.say(f"{answer.host.id} {answer.host.address} {state}{why}")
    run.say(f"{list(states.values()).count('idle')} of {len(states)} hosts are idle")
    run.tell(states)
    return 0
