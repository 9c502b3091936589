"""Where a run goes, and what becomes of what was there."""

from pathlib import Path

import pytest

from atomo.config import Settings
from atomo.launch.place import located


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_names_are_canonical_and_folders_absolute(tmp_path):
    settings = located(
        Settings(network="resnet-18", dataset="cifar10", train_dir="runs/x", resume="runs/y")
    )
    assert (settings.network, settings.dataset) == ("ResNet18", "Cifar10")
    assert settings.train_dir == str(tmp_path / "runs" / "x")
    assert settings.data_dir == str(tmp_path / "data")
    assert settings.resume == str(tmp_path / "runs" / "y")
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_folder_gets_a_new_one_that_says_what_it_is(tmp_path):
    folder = Path(located(Settings(code="svd(rank=2)")).train_dir)
    assert folder.parent == tmp_path / "runs"
    assert folder.name.startswith("lenet-digits-svd-")


def test_starting_anew_loses_nothing(tmp_path, capsys):
    for number in range(3):
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / str(number)).touch()
        settings = located(Settings(train_dir="x", resume="never"))
        assert settings.resume == "never"
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert names == {"x.1", "x.1/0", "x.2", "x.2/1", "x.3", "x.3/2"}
    told = capsys.readouterr().err.splitlines()
    assert told[1].endswith(f"{tmp_path / 'x'} is now in {tmp_path / 'x.2'}")
