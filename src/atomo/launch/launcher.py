"""Starts a job, shows it, and ends with its exit code."""

import sys

from rich.console import Console

from atomo.config.settings import Settings
from atomo.core.arguments import to_arguments
from atomo.launch.display.lines import Display, PlainLines
from atomo.launch.display.panel import LivePanel
from atomo.launch.display.published_lines import PublishedLines
from atomo.launch.display.summary import Summary
from atomo.launch.jobs.mpirun import mpirun_command, split_arguments
from atomo.launch.jobs.rank_placement import fit_to_slots, job_hosts, rank_hosts
from atomo.launch.jobs.slurm import SRUN
from atomo.launch.jobs.ssh import RemoteHosts, ssh_command
from atomo.launch.resolve import claim_folder, resolve_settings
from atomo.launch.restarts import run_with_restarts
from atomo.launch.run_journal import journal_of
from atomo.launch.supervisor import Supervisor
from atomo.training.job.events import Fence

__all__ = ["launch"]


def launch(settings: Settings, console: Console, name: str = "") -> int:
    """Runs the job of `settings` to its end and returns the exit code.

    Args:
        settings: as they were given.
        console: shows the run.
        name: of a folder, where none was given; empty: one that says what is trained.

    Raises:
        ConfigError: a setting does not hold; nothing was started.
    """
    is_named = bool(settings.train_dir)
    settings = resolve_settings(settings, name)
    mpirun_command(settings, to_arguments(settings))  # before anything is made: it may be refused
    settings = claim_folder(settings, is_named)
    shown, summary = display_of(settings, console), Summary()
    reach = RemoteHosts(
        job_hosts(settings),
        SRUN if settings.slurm else ssh_command(split_arguments(settings.mpi_args)),
    )

    def attempt(chosen: Settings, away: frozenset[str]) -> Supervisor:
        chosen = fit_to_slots(chosen, away)
        line, hosts = mpirun_command(chosen, to_arguments(chosen), away), rank_hosts(chosen, away)

        def fence(silent: Fence) -> None:
            if hosts:
                reach.kill(hosts[silent.rank], silent.pid, silent.started, if_stuck=silent.if_stuck)

        return Supervisor(chosen, line, display, summary, fence)

    try:
        with journal_of(settings, shown) as (display, codes):
            codes.append(run_with_restarts(settings, attempt, summary, display, reach.lost))
    finally:
        reach.close()
        shown.close()
    code = codes[-1]
    if summary.last or not code:
        console.print(summary.table())
    return code


def display_of(settings: Settings, console: Console) -> Display:
    """Returns the display of a run."""
    if settings.log_format == "atomo":
        return PublishedLines(sys.stdout)
    return (
        LivePanel(console) if console.is_terminal else PlainLines(sys.stdout, settings.log_interval)
    )
