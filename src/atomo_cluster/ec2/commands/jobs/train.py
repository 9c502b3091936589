"""`train`: runs a job on the cluster."""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Final

from atomo_cluster.ec2.aws.inventory import instances
from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile
from atomo_cluster.ec2.commands.hosts.kill_python import WAIT_S
from atomo_cluster.ec2.commands.jobs.logs import ALL
from atomo_cluster.ec2.hosts.setup import INSTALL_S
from atomo_cluster.ec2.hosts.ssh import UNREACHED, Answer, Host, host_label
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.jobs.control import (
    check_free,
    follow_job,
    print_tail,
    start_job,
    stop_job,
)
from atomo_cluster.ec2.jobs.quorum import fewest_hosts
from atomo_cluster.ec2.launch.plan import make_plan
from atomo_cluster.ec2.money.budget import check_budget
from atomo_cluster.ec2.money.costs import ended_usd
from atomo_cluster.ec2.supervisor.handover import package
from atomo_cluster.ec2.targets.each_host import finish, on_each
from atomo_cluster.ec2.targets.selection import cluster_hosts, ssh_of
from atomo_cluster.errors import ConfigError

HELP: Final = """\
  pytorch_ec2.py train -- --network LeNet --dataset MNIST
  pytorch_ec2.py train --detach -- --network ResNet18 --dataset Cifar10
  pytorch_ec2.py train --queue --detach -- --dataset Digits --code qsgd

Starts a job on the master that runs run_pytorch.sh over all hosts; what follows `--` are its
options. Then it follows the job to its end. Ctrl-C has the job write a checkpoint and end; a
connection that breaks, or a terminal that is closed, leaves it running, and `attach` follows it
again. Where a job runs already, that is left alone and this one refused, or put in its queue. Each
job has a folder of its own, unless --train-dir names one; the same command goes on in the folder of
a run that was cut off: after a spot notice, `launch` and `bootstrap` replace what AWS took back. A
job starts with the hosts that answer ssh, where --min-workers are among them. With `supervise: yes`
a supervisor on the master replaces hosts and goes on, and `train` returns."""
PASSES_ON: Final = True
LAST: Final = "5"  # lines that are shown of a job that was interrupted


def arguments(parser: ArgumentParser) -> None:
    add_hostfile(parser)
    add_manner(parser)


def add_manner(parser: ArgumentParser) -> None:
    parser.add_argument("--detach", action="store_true",
                        help="leave it running on the master, and return")  # fmt: skip
    parser.add_argument("--queue", action="store_true",
                        help="where a job runs, begin when that has ended")  # fmt: skip


def run(run: Run) -> int:
    return train(run, cluster_hosts(run), run.options.passed_on)


def train(run: Run, hosts: list[Host], words: Sequence[str]) -> int:
    """Trains on hosts that are set up, and returns the exit code."""
    cluster, queue = run.cluster, run.options.queue
    if cluster.pre_commands:
        if not queue:
            check_free(run, hosts[0])
        lines = "\n".join([f"cd {cluster.remote_dir}", "set -e", *cluster.pre_commands])
        prepared(run, on_each(run, hosts, lines), fewest_hosts(words, len(hosts)))
    if cluster.supervise and not run.options.hostfile:
        return hand_over(run, hosts[0], words)
    job, folder, script = start_job(run, hosts[0], len(hosts), words, queue=queue)
    run.tell({"job": job, "folder": folder, "command": script})
    if run.options.detach:
        place = f" and trains in {folder}" if folder else ""
        run.say(f"job {job} is on {hosts[0].name}{place}; `pytorch_ec2.py attach {job}` follows it")
        return 0
    code = to_the_end(run, hosts[0], job)
    run.tell({"exit_code": code})
    if code:
        lost(run, hosts)
    return code


def prepared(run: Run, answers: list[Answer], least: int) -> None:
    """Checks that `pre_commands` succeeded, but for silent hosts, without which the job can start.

    Raises:
        RemoteError: a command failed, or the master or too many workers do not answer.
    """
    silent = [answer for answer in answers if answer.code == UNREACHED]
    if answers[0] in silent or len(answers) - len(silent) < least:
        finish(answers, shown=False)
    finish([answer for answer in answers if answer not in silent], shown=False)
    for answer in silent:
        run.say(f"{host_label(answer.host)} does not answer, and has not run pre_commands: "
                f"{answer.complaint()}; going on without it")  # fmt: skip


def hand_over(run: Run, master: Host, words: Sequence[str]) -> int:
    """Starts a supervisor on the master for the job; this machine is then no longer needed.

    Raises:
        NotReady: a job runs already, or the fuses allow for more than `max_usd`.
        RemoteError: the supervisor could not be started.
    """
    if run.options.queue:
        raise ConfigError("supervise: yes looks after one job, and has no --queue")
    fewest_hosts(words, run.cluster.hosts)  # refuses a --min-workers that is no number
    check_free(run, master)
    if run.cluster.max_usd is not None:  # which then holds by the fuses alone, if the master dies
        plan = make_plan(run.aws, run.cluster, run.owned)
        check_budget(run.cluster.max_usd, [plan.total, ended_usd(run)])
    command = f"bash {run.cluster.remote_dir}/tools/remote_script.sh supervise"
    answer = ssh_of(run).run(master, command, package(run, words), INSTALL_S)
    answer.checked("starting the supervisor")
    run.say(
        f"the supervisor on {master.name} has the job: `status` shows its events, `logs --follow` "
        "its output; this machine may be shut down"
    )
    run.tell({"exit_code": 0, "supervised": True})
    return 0


def to_the_end(run: Run, master: Host, job: str) -> int:
    """Follows a job and returns its exit code; on Ctrl-C makes it write a checkpoint."""
    try:
        return follow_job(run, master, job, ALL)
    except KeyboardInterrupt as error:
        if "SIGHUP" in str(error):  # a closed terminal is no wish of anybody's
            raise
        run.say(f"job {job} is to write a checkpoint and end; another Ctrl-C does not wait for it")
        stop_job(run, master, job, WAIT_S)
        print_tail(run, master, job, LAST)
        raise


def lost(run: Run, hosts: Sequence[Host]) -> None:
    """Reports hosts that have ended in the meantime."""
    if run.options.hostfile:
        return
    running = {instance.id for instance in instances(run.aws, run.owned, ["running"])}
    lost_hosts = [host for host in hosts if host.id not in running]
    if lost_hosts:
        run.say(
            f"{len(lost_hosts)} hosts are gone ({', '.join(host.id for host in lost_hosts)}); "
            "`launch` and "
            "`bootstrap` replace them, and the same `train` continues from the last checkpoint"
        )
