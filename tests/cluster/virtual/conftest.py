"""Clusters for tests, of which nothing is left."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.virtual.vc import ROOT, Tool, machine, why_not


@pytest.fixture(scope="session")
def possible() -> None:
    """Skips what needs a cluster where there can be none."""
    if reason := why_not():
        pytest.skip(f"NO VIRTUAL CLUSTER CAN RUN HERE: {reason}")


@pytest.fixture
def tool(possible: None, tmp_path: Path) -> Iterator[Tool]:
    """The command with a folder of its own, and a machine that is as before afterwards."""
    before = machine()
    made = Tool(tmp_path / "clusters")
    yield made
    for record in [*made.clusters.glob("*")]:
        made.does("down", "--purge", "--name", record.name)
    made.leaves_nothing()
    assert machine() == before


@pytest.fixture(scope="module")
def cluster(possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    """Three hosts that the tests of a module share and leave as they were."""
    made = Tool(tmp_path_factory.mktemp("shared") / "clusters")
    try:
        made.does("up", "--hosts", "3", "--rate", "1gbit")
        yield made
    finally:
        made.does("down", "--purge")
        made.leaves_nothing()


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Lets run_pytorch.sh find this Python installed, whatever else is on the machine."""
    folder = tmp_path_factory.mktemp("environment")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    project = (ROOT / "pyproject.toml").read_bytes()
    stamp = subprocess.run(["cksum"], input=project, capture_output=True, check=True).stdout
    (folder / "installed").write_text(f"{stamp.decode().strip()} \n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"ATOMO_VENV": str(folder), "ATOMO_EXTRAS": "", "PATH": path}
