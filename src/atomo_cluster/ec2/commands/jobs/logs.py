"""`logs`: prints the output of a job."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.jobs.control import follow_job, print_tail
from atomo_cluster.ec2.targets.selection import cluster_master
from atomo_cluster.errors import ConfigError

ALL: Final = "+1"  # as `tail -n` has it
HELP: Final = """\
  pytorch_ec2.py logs
  pytorch_ec2.py logs --follow
  pytorch_ec2.py logs 3 --lines 20

Prints the output of a job: the running job, or else the last one. With --follow also all that comes
until it ends; Ctrl-C ends the following and not the job."""


def arguments(parser: ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--follow", "-f", action="store_true", help="and later output")
    parser.add_argument("--lines", type=int, default=None, metavar="N",
                        help="the last N only (default: all)")  # fmt: skip
    add_hostfile(parser)


def add_job(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", default="last",
                        help="its number (default: the job that runs, or ran last)")  # fmt: skip


def run(run: Run) -> int:
    master = cluster_master(run)
    options = run.options
    lines = ALL if options.lines is None else str(options.lines)
    if options.lines is not None and options.lines < 0:
        raise ConfigError(f"--lines must be 0 or more, got {options.lines}")
    job = number(options.job)
    if options.follow:
        follow_job(run, master, job, lines)
    else:
        print_tail(run, master, job, lines)
    run.tell({"job": job})
    return 0


def number(word: str) -> str:
    """Returns the job as an argument of job.sh.

    Raises:
        ConfigError: it is neither a number nor `last`.
    """
    if word != "last" and not word.isdecimal():
        raise ConfigError(f"JOB is a number, as `jobs` lists them, got {word!r}")
    return word
