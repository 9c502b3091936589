"""The folder of a run, and the treatment of files that are already there."""

from pathlib import Path

import pytest

from atomo.cli import main
from atomo.config.identity import record
from atomo.config.settings import Settings
from atomo.launch.resolve import claim_folder, resolve_settings
from atomo.training.checkpoints.checkpoint import Snapshot, save
from atomo.training.folder.ownership import EVALUATOR, RUN, FolderTaken, own


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_names_are_canonical_and_folders_absolute(tmp_path):
    settings = resolve_settings(
        Settings(network="resnet-18", dataset="cifar10", train_dir="runs/x", resume="runs/y")
    )
    assert (settings.network, settings.dataset) == ("ResNet18", "Cifar10")
    assert settings.train_dir == str(tmp_path / "runs" / "x")
    assert settings.data_dir == str(tmp_path / "data")
    assert settings.resume == str(tmp_path / "runs" / "y")
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_folder_gets_a_new_one_that_says_what_it_is(tmp_path):
    folder = Path(resolve_settings(Settings(code="svd(rank=2)")).train_dir)
    assert folder.parent == tmp_path / "runs"
    assert folder.name.startswith("lenet-digits-svd-")
    assert not folder.parent.exists()


def test_runs_that_start_in_the_same_second_get_folders_of_their_own():
    settings = resolve_settings(Settings())
    folders = [claim_folder(settings, is_named=False).train_dir for _ in range(3)]
    assert folders == [settings.train_dir, f"{settings.train_dir}-2", f"{settings.train_dir}-3"]
    assert all(not list(Path(folder).iterdir()) for folder in folders)


def test_starting_anew_loses_nothing(tmp_path, capsys):
    for number in range(3):
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / str(number)).touch()
        settings = claim_folder(
            resolve_settings(Settings(train_dir="x", resume="never")), is_named=True
        )
        assert settings.resume == "never"
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert names == {"x.1", "x.1/0", "x.2", "x.2/1", "x.3", "x.3/2"}
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].endswith(f"{tmp_path / 'x'} is now in {tmp_path / 'x.2'}")


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_a_folder_that_a_run_uses_is_left_to_it(resume, tmp_path, capsys):
    (tmp_path / "x").mkdir()
    with own(tmp_path / "x", RUN):
        assert main(["train", "--train-dir=x", f"--resume={resume}"]) == 4
    text = capsys.readouterr().err
    assert text.startswith(f"atomo train: another run trains in {tmp_path / 'x'}: process ")
    assert text.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_an_evaluator_uses_is_not_set_aside(tmp_path):
    (tmp_path / "x").mkdir()
    settings = resolve_settings(Settings(train_dir="x", resume="never"))
    with own(tmp_path / "x", EVALUATOR), pytest.raises(FolderTaken, match="another evaluator"):
        claim_folder(settings, is_named=True)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_what_is_refused_makes_no_folder(tmp_path):
    assert main(["train", "--hostfile=nowhere"]) == 2
    assert not list(tmp_path.iterdir())


def saved(folder: Path, **settings: object) -> None:
    kept = record(Settings(**settings).resolved())
    save(folder, Snapshot(3, {}, {}, (), kept))


def test_a_run_that_continues_keeps_the_memory_of_its_checkpoint(tmp_path):
    """Earlier versions chose another: the same command must still continue such a run."""
    saved(tmp_path / "x", code="topk", memory="residual")
    assert resolve_settings(Settings(code="topk", train_dir="x")).memory == "residual"
    assert resolve_settings(Settings(code="topk", train_dir="y", resume="x")).memory == "residual"
    assert resolve_settings(Settings(code="topk", train_dir="x", memory="dgc")).memory == "dgc"
    assert resolve_settings(Settings(code="topk(ratio=0.1)", train_dir="x")).memory == "dgc"
    assert resolve_settings(Settings(code="topk", train_dir="y")).memory == "dgc"
