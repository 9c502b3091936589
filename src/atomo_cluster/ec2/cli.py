"""The command line of `tools/pytorch_ec2.py`."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from signal import Signals
from types import FrameType, MappingProxyType, ModuleType
from typing import Any, Final

from atomo_cluster.arguments import Parser
from atomo_cluster.ec2.commands import module_of
from atomo_cluster.ec2.hosts.keys import check_state
from atomo_cluster.ec2.invocation.document import Document
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.invocation.wrapping import wrap_line, wrap_text
from atomo_cluster.ec2.money.survey import tell_cluster_place
from atomo_cluster.ec2.settings.yaml_file import add_settings
from atomo_cluster.errors import ClusterError, ConfigError
from atomo_cluster.names import nearest
from atomo_cluster.program import dispatch, handled

__all__ = ["COMMANDS", "main"]

PROGRAM: Final = "pytorch_ec2.py"
# Each command is a module of `atomo_cluster.ec2.commands`, imported when used.
COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "init": "write a configuration file with every key explained",
        "iam": "print the policy that the identity needs",
        "cheapest": "find instance types by GPUs, memory or vCPUs",
        "plan": "show the hosts and the cost of a launch",
        "validate": "check everything that can be checked before money is spent",
        "launch": "start the cluster, or its missing hosts",
        "get_hosts": "write hosts, hosts_alias and hosts_address, the master first",
        "status": "list the cluster's hosts, and when their fuses end them",
        "cost": "show the past, present and possible cost of the cluster",
        "extend": "move the fuses of the cluster's hosts",
        "resize": "launch workers, or end some, until there are N",
        "bake": "make an image with the environment in it",
        "delete_images": "delete the images that bake has made",
        "stop_hosts": "stop the cluster's hosts and keep their disks",
        "start_hosts": "start the hosts that stop_hosts has stopped",
        "list_running_instances": "list the running hosts of all your clusters",
        "list_idle_instances": "list the hosts on which no training runs",
        "run_command": "run a shell command on hosts",
        "kill_python": "end Python on the cluster's hosts",
        "kill_all_python": "end Python on the hosts of all your clusters",
        "setup_nfs": "mount the shared folder on every host",
        "bootstrap": "set the hosts up: keys, code, shared folder, environment",
        "train": "train on the cluster",
        "jobs": "list the jobs that run, wait or have ended",
        "logs": "print the output of a job",
        "attach": "follow a job to its exit code",
        "stop": "have a job write a checkpoint and end",
        "fetch": "bring a run home",
        "upload": "take a data set to the hosts",
        "supervise": "look after a job, on the master; `train` starts it",
        "ssh": "open a shell on a host",
        "clean_launch_and_run": "shutdown, launch, bootstrap and train in one go",
        "shutdown": "end the cluster, and verify that nothing is left",
    }
)
# Commands of the published script that ran one program, and what does their work here.
SUCCESSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "run_mxnet_grid_search": "`train --queue --detach -- OPTIONS`, once for each combination "
        "of options, does its work; `jobs` lists the results",
        "run_mxnet_loss_curve": "`train -- OPTIONS` does its work; losses are in metrics.jsonl "
        "and evaluations.jsonl of the job's folder, which `fetch` brings home",
    }
)
# These write keys or known hosts to state_dir, which is to fail before AWS or a host is asked.
STATEFUL: Final = frozenset(
    {"launch", "resize", "extend", "clean_launch_and_run", "bootstrap", "setup_nfs", "train",
     "jobs", "logs", "attach", "stop", "run_command", "ssh", "kill_python", "kill_all_python",
     "list_idle_instances", "fetch", "upload", "stop_hosts", "start_hosts", "bake"}
)  # fmt: skip
# These serve hosts of one's own as well.
ON_OWN_HOSTS: Final = (
    "bootstrap", "status", "train", "jobs", "logs", "attach", "stop", "fetch", "upload",
    "run_command", "ssh", "kill_python", "setup_nfs",
)  # fmt: skip
# These ask AWS about a cluster and say first in which place; the next say it themselves, with more
# about it, or once their options are checked.
PLACED: Final = frozenset(COMMANDS) - {"init", "iam", "cheapest", "supervise"}
SURVEYING: Final = frozenset({"status", "cost", "shutdown", "setup_nfs",
                                "clean_launch_and_run"})  # fmt: skip
EXIT_CODES: Final = """\
exit codes: 0 done; 1 a defect; 2 a setting or option is wrong; 10 AWS refused or failed; 11 a host
failed or could not be reached; 12 a check before the launch failed; 13 the question was answered
with no; 14 something is left that should be gone; 130 interrupted. `train`, `attach` and `ssh` end
with the exit code of what they ran, where that did not succeed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    return dispatch(PROGRAM, COMMANDS, usage, act, arguments, SUCCESSORS)


def act(name: str, words: list[str]) -> int:
    """Runs the command of this name. Signals raise KeyboardInterrupt, so a launch rolls back."""
    module = module_of(name)
    run: Callable[[Run], int] = module.run
    words_before_separator = words[: words.index("--")] if "--" in words else words
    document = Document(enabled="--json" in words_before_separator)
    with handled(interrupt), document.printed():
        made = Run(parsed(name, module, words), document)
        with reported(made, name):
            if name in STATEFUL:
                check_state(made.given)
            if name in PLACED - SURVEYING:
                tell_cluster_place(made)
            code = run(made)
            if code:
                document.fail(f"`{name}` ended with code {code}", code)
            return code


@contextmanager
def reported(run: Run, name: str) -> Iterator[None]:
    """Reports the hosts that run if the block is interrupted, also in the middle of a roll-back."""
    try:
        yield
    except (KeyboardInterrupt, ClusterError) as error:
        if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
            from atomo_cluster.ec2.targets.interruption import report_interruption

            report_interruption(run, name, error)
        raise


def interrupt(number: int, frame: FrameType | None) -> None:
    """Treats SIGTERM and a closed terminal like Ctrl-C."""
    raise KeyboardInterrupt(f"interrupted by {Signals(number).name}")


def parser(name: str, module: ModuleType) -> Parser:
    """Builds the parser of a command."""
    built = Parser(
        prog=f"{PROGRAM} {name}",
        description=f"{COMMANDS[name][:1].upper()}{COMMANDS[name][1:]}.\n\n{wrap_text(module.HELP)}",
        epilog=wrap_text(EXIT_CODES),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    built.add_argument("--json", action="store_true", help="print one JSON document, for scripts")
    built.add_argument("--endpoint-url", default=None, metavar="URL",
                       help="another AWS, e.g. moto's (default $AWS_ENDPOINT_URL)")  # fmt: skip
    module.arguments(built)
    add_settings(built)
    return built


def parsed(name: str, module: ModuleType, words: Sequence[str]) -> argparse.Namespace:
    """Parses the options of a command; the words after `--` go to the program that it runs."""
    own_words, job_words = list(words), []
    if "--" in own_words:
        at = own_words.index("--")
        own_words, job_words = own_words[:at], own_words[at + 1 :]
    built = parser(name, module)
    options_given = {word.partition("=")[0] for word in own_words}
    # A command without --hostfile would take the path for another argument.
    if "--hostfile" in options_given and name not in ON_OWN_HOSTS:
        raise ConfigError(
            f"`{name}` is about clusters of EC2 alone; --hostfile goes with "
            f"{', '.join(ON_OWN_HOSTS)}"
        )
    values, unknown = built.parse_known_args(own_words)
    if unknown:
        word = unknown[0].partition("=")[0]
        raise ConfigError(f"unknown option {word!r}; {nearest(word, options(built))}")
    if job_words and not getattr(module, "PASSES_ON", False):
        raise ConfigError(f"`{name}` takes nothing after `--`, got {' '.join(job_words)!r}")
    values.passed_on = job_words
    return values


def options(built: Any) -> list[str]:
    """Lists the options of a parser."""
    return [word for word in built._option_string_actions if word.startswith("--")]


def usage() -> str:
    """Returns the text of `pytorch_ec2.py --help`."""
    lines = [wrap_line(f"  {name:24}{text}", indent=" " * 26) for name, text in COMMANDS.items()]
    return "\n".join([f"usage: {PROGRAM} COMMAND [OPTION ...]", "", *lines, "",
                      f"`{PROGRAM} COMMAND --help` has examples and lists the options.", "",
                      wrap_text(EXIT_CODES), ""])  # fmt: skip
