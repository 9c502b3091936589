"""The hosts of an allocation. The outputs of SLURM were recorded from slurmctld 22.05 and its
commands; `tests/cluster/virtual/test_slurm.py` asks a real one.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.launch.cli_settings import parse_cli_settings
from atomo.launch.jobs.hosts import Host
from atomo.launch.jobs.mpirun import mpirun_command
from atomo.launch.jobs.rank_placement import job_hosts, ranks_per_host
from atomo.launch.jobs.slurm import SRUN, allocated_hosts, expand_node_list, tasks_per_node
from atomo.launch.launcher import launch

# Options of salloc, what it put into the environment, and what scontrol made of it.
ALLOCATIONS = [
    ("-N4", "h[1-4]", "1(x4)", {"h1": 1, "h2": 1, "h3": 1, "h4": 1}),
    ("-N3 -n 7", "h[1-3]", "4,2,1", {"h1": 4, "h2": 2, "h3": 1}),
    ("-n 5 -c 2", "h[1-3]", "2(x2),1", {"h1": 2, "h2": 2, "h3": 1}),
    ("-N2 --exclusive", "h[1-2]", "4(x2)", {"h1": 4, "h2": 4}),
    ("-w h2,h4 -N2", "h[2,4]", "1(x2)", {"h2": 1, "h4": 1}),
    ("-w h2 -n 2", "h2", "2", {"h2": 2}),
]
Inside = Callable[[str, str, list[str]], None]


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """Puts this process into an allocation, where scontrol answers with these names."""

    def put(nodes: str, tasks: str, names: list[str]) -> None:
        expand_node_list.cache_clear()
        answer(tmp_path, f'[ "$*" = "show hostnames {nodes}" ] && printf "%s\\n" {" ".join(names)}')
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)

    return put


def answer(folder: Path, does: str) -> None:
    script = folder / "scontrol"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)


@pytest.mark.parametrize(("asked", "nodes", "tasks", "counts"), ALLOCATIONS)
def test_an_allocation_is_hosts_with_slots(asked, nodes, tasks, counts, inside):
    inside(nodes, tasks, [*counts])
    assert allocated_hosts() == [Host(name, slots) for name, slots in counts.items()]
    settings = parse_cli_settings(["--slurm"], "train", "").settings
    assert (settings.slurm, settings.n) == (True, sum(counts.values()))
    assert ranks_per_host(settings) == [*counts.items()]
    assert job_hosts(settings) == [*counts]


def test_some_of_the_tasks_may_wait_or_be_left(inside):
    inside("h[1-2]", "2(x2)", ["h1", "h2"])
    assert parse_cli_settings(["--slurm", "yes", "--spares=1"], "train", "").settings.n == 3
    some = parse_cli_settings(["--n=3", "--slurm"], "train", "").settings
    line = mpirun_command(some, [])
    assert line[line.index("--host") + 1] == "h1:2,h2:1"
    assert "oob_tcp_keepalive_time" in line
    assert line[line.index("plm_slurm_args") + 1] == "--overlap"
    with pytest.raises(ConfigError, match=r"--n 5, but the allocation of SLURM .* 4 processes"):
        mpirun_command(Settings(n=5, slurm=True), [])


def test_what_is_no_allocation_is_told(inside, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"no SLURM allocation here.*a script for sbatch"):
        parse_cli_settings(["--slurm"], "train", "")
    inside("h[1-2]", "1(x2)", ["h1", "h2"])
    with pytest.raises(ConfigError, match="srun has started this command 4 times"):
        allocated_hosts({**os.environ, "SLURM_STEP_NUM_TASKS": "4"})
    assert (
        len(allocated_hosts({**os.environ, "SLURM_STEP_NUM_TASKS": "1"})) == 2
    )  # a shell of salloc
    with pytest.raises(ConfigError, match=r"counts 3 nodes.*h\[1-2\], has 2"):
        allocated_hosts({**os.environ, "SLURM_TASKS_PER_NODE": "1(x3)"})
    with pytest.raises(ConfigError, match="--hostfile hosts and --slurm both name"):
        Settings(hostfile="hosts", slurm=True)
    expand_node_list.cache_clear()
    answer(tmp_path, "echo fatal: no configuration >&2; exit 1")
    with pytest.raises(ConfigError, match=r"`scontrol show hostnames h\[1-2\]`: fatal: no conf"):
        allocated_hosts()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="there is no scontrol on the PATH"):
        allocated_hosts()


def test_one_task_is_no_job(inside):
    inside("h1", "1", ["h1"])
    with pytest.raises(ConfigError, match="the allocation has one task"):
        parse_cli_settings(["--slurm"], "train", "")


@pytest.mark.parametrize("text", ["", "2(x)", "0", "2(x0)", "2;1", "x", "1,", "-1"])
def test_what_is_no_list_of_tasks_is_refused(text):
    with pytest.raises(ConfigError, match="is not a list such as"):
        tasks_per_node(text)


def test_without_it_a_job_stays_on_this_host(inside):
    inside("h[1-2]", "1(x2)", ["h1", "h2"])
    line = mpirun_command(Settings(), [])
    assert line[line.index("ras") - 1 : line.index("ras") + 2] == ["--prtemca", "ras", "^slurm"]
    assert "ras" not in mpirun_command(Settings(slurm=True, n=2), [])
    own = Settings(mpi_args="--prtemca ras slurm")
    assert mpirun_command(own, []).count("ras") == 1


def test_its_hosts_are_reached_through_srun(inside, tmp_path, monkeypatch):
    inside("h[1-2]", "1(x2)", ["h1", "h2"])
    seen: list[object] = []

    def reach(hosts, words):
        seen.append((hosts, words))
        raise KeyboardInterrupt  # before anything starts

    monkeypatch.setattr("atomo.launch.launcher.RemoteHosts", reach)
    with pytest.raises(KeyboardInterrupt):
        launch(Settings(slurm=True, n=2, train_dir=str(tmp_path / "run")), Console())
    assert seen == [(["h1", "h2"], SRUN)]
