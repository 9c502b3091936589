"""The transport over torch.distributed keeps the same contract among three real processes."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.jobs import Job
from transports.scenarios import SCENARIOS

RANKS = Path(__file__).with_name("torch_ranks.py")

pytestmark = pytest.mark.slow


def run_scenarios(names: Sequence[str], folder: Path) -> tuple[list[int], str]:
    """Returns the exit codes of the ranks of a job that plays scenarios, and all their words."""
    folder.mkdir(exist_ok=True)
    env = {"ATOMO_TEST_STORE": str(folder / "store"), "WORLD_SIZE": "3"}
    env["GLOO_SOCKET_IFNAME"] = "lo"  # the host's own name may lead nowhere
    jobs = [
        Job([sys.executable, str(RANKS), *names], folder / f"log.{rank}", env | {"RANK": str(rank)})
        for rank in range(3)
    ]
    try:
        codes = [job.ends() for job in jobs]
        return codes, "".join(job.output for job in jobs)
    finally:
        for job in jobs:
            job.kill()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], str]:
    """Returns all scenarios, one after the other, in one job."""
    return run_scenarios([*SCENARIOS], tmp_path_factory.mktemp("torch"))


@pytest.mark.parametrize("name", [*SCENARIOS])
def test_every_rank_is_content_with(name, results):
    _, output = results
    assert all(f"{name}: rank {rank} is content" in output for rank in range(3)), output


def test_ranks_that_are_content_end_well(results):
    assert results[0] == [0, 0, 0]


@pytest.mark.long
def test_an_abort_ends_every_rank_with_its_code(tmp_path):
    codes, output = run_scenarios(["abort"], tmp_path)
    assert codes == [9, 9, 9]
    assert "Traceback" not in output


@pytest.mark.long
def test_the_loss_of_a_rank_is_told_to_all_and_ends_nobody_else(tmp_path):
    codes, output = run_scenarios(["lost"], tmp_path)
    assert codes == [0, 0, 0], output
    assert all(f"lost: rank {rank} is content" in output for rank in (0, 1)), output
