"""The MPI transport keeps its contract among three real ranks."""

from pathlib import Path

import pytest
from support.jobs import Job, until
from transports.scenarios import SCENARIOS

from atomo.config.settings import Settings
from atomo.launch.jobs.mpirun import mpirun_command

RANKS = Path(__file__).with_name("mpi_ranks.py")
NAMES = [*SCENARIOS, "parts"]


def run_scenarios(names: list[str], log: Path) -> tuple[int, str]:
    """Returns the exit code and the words of a job that plays scenarios."""
    line = mpirun_command(Settings(n=3), [])
    job = Job([*line[: line.index("-m")], str(RANKS), *names], log)
    try:
        code = job.ends()
        until(lambda: not job.family(), "every process to end")
        return code, job.output
    finally:
        job.kill()


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """Returns all scenarios, one after the other, in one job."""
    return run_scenarios(NAMES, tmp_path_factory.mktemp("mpi") / "log")


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_is_content_with(name, results):
    _, output = results
    assert all(f"{name}: rank {rank} is content" in output for rank in range(3)), output


def test_ranks_that_are_content_end_well(results):
    assert results[0] == 0
    assert results[1].count("MPI's last call was made: True") == 3


@pytest.mark.long
def test_once_a_rank_is_dead_nobody_makes_the_last_call_of_mpi(tmp_path):
    """MPI's last call would wait for ever once all ranks of a host are dead."""
    _, output = run_scenarios(["killed"], tmp_path / "log")
    assert all(f"killed: rank {rank} is content" in output for rank in range(2)), output
    assert output.count("MPI's last call was made: False") == 2, output


def test_an_abort_ends_every_rank_with_its_code(tmp_path):
    code, output = run_scenarios(["abort"], tmp_path / "log")
    assert code == 9
    assert "Traceback" not in output
