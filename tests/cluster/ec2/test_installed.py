"""The cluster tools as a distribution of their own, without a checkout and without the library."""

import sys
import tarfile
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from cluster.ec2.conftest import Ec2
from support.wheels import CLUSTER, ROOT, Installed, build, check_metadata, sources

from atomo.core.distribution import NAME

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "src/atomo_cluster/"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Returns the wheel in an environment that has no library."""
    return Installed(tmp_path_factory.mktemp("cluster"), CLUSTER)


def project(root: Path) -> dict[str, object]:
    """Returns the table `project` of a distribution."""
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def test_both_distributions_have_one_version_one_license_and_one_client() -> None:
    ours, library = project(CLUSTER), project(ROOT)
    for key in ("version", "license", "requires-python"):
        assert ours[key] == library[key]
    assert ours["dependencies"] == library["optional-dependencies"]["ec2"]
    assert (CLUSTER / "atomo_cluster/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_neither_distribution_needs_the_other() -> None:
    assert not [line for line in requires(NAME) or () if "cluster" in line]
    assert not [line for line in project(CLUSTER)["dependencies"] if "atomo" in line]


@pytest.mark.slow
def test_the_wheel_has_every_file_and_no_other(cluster: Installed, tmp_path: Path) -> None:
    about = "atomo_cluster-0.2.0.dist-info/"
    named = {*zipfile.ZipFile(cluster.wheel).namelist()}
    files = {name for name in named if not name.startswith(about)}
    ours = {name.removeprefix("src/") for name in sources() if name.startswith(PREFIX)}
    assert files == ours - {"atomo_cluster/LICENSE"}
    assert f"{about}licenses/atomo_cluster/LICENSE" in named
    with tarfile.open(cluster.sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    build(tmp_path / "atomo_cluster-0.2.0", tmp_path, "wheel")
    assert next(tmp_path.glob("*.whl")).read_bytes() == cluster.wheel.read_bytes()


@pytest.mark.slow
def test_an_index_would_take_it(cluster: Installed) -> None:
    check_metadata(cluster)


@pytest.mark.slow
def test_the_command_of_the_wheel_plans_without_the_library(
    ec2: Ec2, cluster: Installed, folder: Path
) -> None:
    config = str(folder / "cluster.yaml")
    result = ec2("plan", "--config", config)
    assert cluster.run("pytorch_ec2.py", "plan", "--config", config) == result.out
    assert "2 workers" in result.out
    alone = "from importlib.util import find_spec as f; print(f('atomo'), f('atomo_cluster').name)"
    assert cluster.run("python", "-c", alone) == "None atomo_cluster\n"
