"""Clusters for tests, of which nothing is left."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.virtual.vc import Tool, machine, why_not
from cluster.virtual.vc import environment as made_environment


@pytest.fixture(scope="session")
def possible() -> None:
    """Skips tests that need a cluster if none can run here."""
    if reason := why_not():
        pytest.skip(f"NO VIRTUAL CLUSTER CAN RUN HERE: {reason}")


@pytest.fixture
def tool(possible: None, tmp_path: Path) -> Iterator[Tool]:
    """Returns the command with a folder of its own, and a machine that is as before afterwards."""
    before = machine()
    made = Tool(tmp_path / "clusters")
    yield made
    for record in [*made.clusters.glob("*")]:
        made.does("down", "--purge", "--name", record.name)
    made.leaves_nothing()
    assert machine() == before


@pytest.fixture(scope="module")
def cluster(possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    """Returns three hosts that the tests of a module share and leave as they were."""
    made = Tool(tmp_path_factory.mktemp("shared") / "clusters")
    try:
        made.does("up", "--hosts", "3", "--rate", "1gbit")
        yield made
    finally:
        made.does("down", "--purge")
        made.leaves_nothing()


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Lets run_pytorch.sh find this Python installed, with whatever else is on the machine."""
    return made_environment(tmp_path_factory.mktemp("environment"))
