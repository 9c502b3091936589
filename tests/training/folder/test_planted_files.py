"""An untrusted run folder: links under a run's names lead to no other file."""

import ast
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import atomo
from atomo.codecs import make_codec
from atomo.config.settings import Settings
from atomo.errors import CheckpointError
from atomo.fusion import plan
from atomo.launch.studies.sweep_results import SweepTrial, append_trial
from atomo.options.grouping import megabytes
from atomo.training.checkpoints.checkpoint import Snapshot, finish, save
from atomo.training.evaluation.evaluation import Evaluation
from atomo.training.evaluation.evaluation_log import EvaluationLog
from atomo.training.evaluation.tensorboard_writer import TensorBoardWriter
from atomo.training.folder.kept_settings import keep_settings
from atomo.training.folder.lock_file import age_s
from atomo.training.folder.ownership import EVALUATOR, RUN, own
from atomo.training.folder.run_folder import explained, probe
from atomo.training.records.metrics import MetricsLog
from atomo.training.step.gradient_dump import GradientDump

TEXT = b'{"step": 1}\n{"victim": "of somebody else", "torn'  # a log that would be cut off


def link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def dangling(path: Path, victim: Path) -> None:
    path.symlink_to(victim.parent / "new")


def pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, victim: Path) -> None:
    path.mkdir()
    (path / "something").write_bytes(TEXT)


def owned(right):
    def act(run: Path) -> None:
        with own(run, right, patience_s=0.0):
            pass

    return act


def evaluated(run: Path) -> None:
    with EvaluationLog(run, 0.0, 0.0, lambda _: None) as log:
        log.done()
        log.add(Evaluation(2, {"accuracy": 1.0}, 1, "images"))


def boarded(run: Path) -> None:
    with TensorBoardWriter(run / "tensorboard") as board:
        board.add(Evaluation(1, {"accuracy": 1.0}, 1, "images"))


def dumped(run: Path) -> None:
    dump = GradientDump(run / "gradients", 1)
    dump.add(plan([("w", torch.Size([2]))], make_codec("sgd"), megabytes(1.0))[0], torch.ones(2), 1)
    dump.finish(1)


def logged(run: Path) -> None:
    with MetricsLog(run, 5):
        pass


def aged(run: Path) -> None:
    lock = run / "run.lock"
    lock.touch()
    descriptor = os.open(lock, os.O_RDONLY)
    try:
        age_s(descriptor, lock)
    finally:
        os.close(descriptor)


def saved(run: Path) -> None:
    save(run, Snapshot(1, {"w": torch.ones(3)}, {}, ({},), {}))


PARTS = ("model", "optimizer", "worker-1")
# What a run writes, and what writes it.
IN_PLACE: dict[str, Callable[[Path], object]] = {
    "run.lock": owned(RUN),
    "evaluator.lock": owned(EVALUATOR),
    "metrics.jsonl": logged,
    "evaluations.jsonl": evaluated,
    "sweep.jsonl": lambda run: append_trial(run, SweepTrial("lr=1", "", 1, 1.0, 1.0, 1.0, 1.0)),
    "finished.json": lambda run: finish(run, 1, "done"),
    "settings.toml": lambda run: keep_settings(run, Settings()),
    "step-00000001.json": saved,
    **{f"step-00000001.{part}.safetensors": saved for part in PARTS},
}
TEMPORARY: dict[str, Callable[[Path], object]] = {
    ".probe": lambda run: probe(run / "step-00000001.json", 1),
    ".run.lock": aged,
    ".metrics.jsonl": logged,
    ".finished.json": IN_PLACE["finished.json"],
    ".settings.toml": IN_PLACE["settings.toml"],
    ".step-00000001.json": saved,
    **{f".step-00000001.{part}.safetensors": saved for part in PARTS},
}
FOLDERS: dict[str, Callable[[Path], object]] = {"tensorboard": boarded, "gradients": dumped}


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """Returns a file outside of the run folder, alone in its folder, which must stay unchanged."""
    victim = tmp_path / "elsewhere" / "victim"
    victim.parent.mkdir()
    victim.write_bytes(TEXT)
    yield victim
    assert victim.read_bytes() == TEXT
    assert os.listdir(victim.parent) == ["victim"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder that is reached through a link, as `runs/latest` may be."""
    (tmp_path / "run").mkdir()
    (tmp_path / "latest").symlink_to("run")
    return tmp_path / "latest"


@pytest.mark.parametrize("make", [link, dangling, pipe, folder], ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_no_file_of_the_run_is_refused(run, victim, name, make):
    make(run / name, victim)
    before = os.lstat(run / name)
    with pytest.raises(CheckpointError, match=r"symbolic link|pipe|folder|Is a directory") as error:
        IN_PLACE[name](run)
    assert str(run / name) in str(error.value)
    assert os.path.samestat(before, os.lstat(run / name))


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_file_with_another_name_is_not_written(run, victim, name):
    """A file renamed over the name leaves the other name alone. Appending to the file
    is refused.
    """
    hard_link(run / name, victim)
    try:
        IN_PLACE[name](run)
    except CheckpointError as error:
        assert "2 names (hard links)" in str(error)  # noqa: PT017  # some are replaced instead


@pytest.mark.parametrize("make", [link, dangling, hard_link, pipe], ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", TEMPORARY)
def test_a_temporary_file_is_made_anew(run, victim, name, make):
    path = run / f"{name}.{os.getpid()}.tmp"
    make(path, victim)
    TEMPORARY[name](run)
    assert not os.path.lexists(path)


def leads_away(path: Path, victim: Path) -> None:
    path.symlink_to(victim.parent)


@pytest.mark.parametrize("make", [leads_away, link, pipe], ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_the_run_leads_nowhere_else(run, victim, name, make, capsys):
    make(run / name, victim)
    message = ""
    try:
        FOLDERS[name](run)
    except CheckpointError as error:
        message = str(error)
    message += capsys.readouterr().err  # gradients are left out, with a line
    assert str(run / name) in message
    assert "not a folder" in message


@pytest.mark.parametrize("make", [link, folder], ids=lambda make: make.__name__)
def test_a_dumped_gradient_leads_nowhere_else(run, victim, make, capsys):
    (run / "gradients").mkdir()
    make(run / "gradients" / "step-00000001.safetensors", victim)
    dumped(run)
    assert "step-00000001.safetensors" in capsys.readouterr().err


# Calls that open, make or write a file, or a folder's content.
WRITES = {"open", "write_text", "write_bytes", "truncate", "touch", "SummaryWriter", "mkstemp"}
READS = {"read_text", "read_bytes", "load_file", "safe_open"}
PACKAGE = Path(atomo.__file__).parent
ROOMS = ("training", "launch", "cli", "planning", "hooks")
ALLOWED = {
    "training/folder/run_folder.py": {"open"},  # a folder, to sync it
    "training/records/json_lines.py": {"truncate"},  # a file that `opened_own` opened
    "training/evaluation/tensorboard_writer.py": {
        "SummaryWriter"
    },  # in a folder that `make_folder` made
    "hooks/states/rank_files.py": {"safe_open"},  # of a file that `opened` has looked at
    "training/thread_share.py": {"read_text"},  # /proc
    "training/folder/lock_owner.py": {"read_text"},  # /proc
    "launch/jobs/streams.py": {"read_text"},  # /proc
    "training/job/job.py": {"open"},  # a task
    "training/evaluation/scoring.py": {"open"},  # a task
    "training/step/sample_gradient.py": {"open"},  # a task
    "cli/explanation/inputs.py": {"open"},  # a task
}


def called(path: Path) -> set[str]:
    """Names that a file calls, but for those that it imports from `atomo.core.safe_read`."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    froms = [n for n in nodes if type(n) is ast.ImportFrom and n.module == "atomo.core.safe_read"]
    imported = {alias.name for node in froms for alias in node.names}
    functions = [node.func for node in nodes if type(node) is ast.Call]
    methods = {function.attr for function in functions if type(function) is ast.Attribute}
    return (
        methods | {function.id for function in functions if type(function) is ast.Name} - imported
    )


@pytest.mark.slow
def test_no_other_way_leads_to_the_files_of_a_run():
    for path in sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        forbidden = called(path) & (WRITES | READS) - ALLOWED.get(name, set())
        assert not forbidden, f"{name} calls {forbidden}: `atomo.core.safe_read` opens files"


def test_a_link_in_a_files_place_is_no_lack_of_room(tmp_path: Path) -> None:
    link = tmp_path / "run.lock"
    with pytest.raises(CheckpointError) as caught, explained(link, 1024):
        raise OSError(errno.ELOOP, "it is a symbolic link, not a file")
    assert str(caught.value).startswith(f"cannot write {link}: it is a symbolic link, not a file; ")
