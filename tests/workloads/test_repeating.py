"""The settings in a run's folder repeat the run, for every task."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.harness import run_threads
from workloads import real_format
from workloads.shapes import write_shapes

from atomo.config.file import SETTINGS_FILE
from atomo.config.settings import Settings
from atomo.launch.cli_settings import parse_cli_settings
from atomo.launch.resolve import resolve_settings
from atomo.training.checkpoints.checkpoint import load

pytestmark = pytest.mark.slow


def write_sentences(root: Path) -> None:
    real_format.write_sentences(root / "UIT-VSFC", train=12, test=3)


def write_encoder(root: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: the extra text has it")
    write_sentences(root)
    words = [word for class_words in real_format.WORDS.values() for word in class_words]
    real_format.write_encoder(root / "tiny", [*real_format.COMMON, *words])


def write_text(root: Path) -> None:
    real_format.write_text(root, train=20, test=5)


def write_labels(root: Path) -> None:
    real_format.write_labels(root, train=12, test=4)


def write_speech(root: Path) -> None:
    real_format.write_speech(root / "vivos", train=4, test=2)


def write_spoken(root: Path) -> None:
    real_format.write_spoken(root / "vivos", train=4, test=2)


def write_objects(root: Path) -> None:
    write_shapes(root / "coco", train=4, val=2)


def read(*words: str) -> Settings:
    """Returns the settings of a command, as `atomo train` hands them to its ranks."""
    return resolve_settings(parse_cli_settings(words, "train", "").settings)


@pytest.mark.long(cases=("detection",))
@pytest.mark.parametrize(
    ("task", "write"),
    [
        ("text(hidden=4)", write_sentences),
        ("encoder(folder='tiny', length=64)", write_encoder),
        ("language(hidden=4)", write_text),
        ("labels(hidden=4)", write_labels),
        ("audio(hidden=4)", write_speech),
        ("transcription(hidden=4)", write_spoken),
        pytest.param(
            "detection(min_size=64, max_size=96, width=8, regions=8)",
            write_objects,
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: value.partition("(")[0] if isinstance(value, str) else "",
)
def test_the_settings_in_a_folder_repeat_the_run(
    task: str, write: Callable[[Path], None], tmp_path
):
    write(tmp_path)
    # One worker: those that are threads draw dropout and regions from one generator.
    words = ["--n=2", "--batch-size=2", "--max-steps=2", "--code=sgd", "--optimizer=adam"]
    own = ["--dataset=Labels"] if task.startswith("labels") else []
    own += ["--dataset=Corpus"] if task.startswith("language") else []
    own += ["--network=fasterrcnn_resnet18_fpn"] if task.startswith("detection") else []
    item, two = tmp_path / "one", tmp_path / "two"
    run_threads(read("--task", task, f"--data-dir={tmp_path}", f"--train-dir={item}", *words, *own))
    run_threads(read("--config", str(item / SETTINGS_FILE), f"--train-dir={two}"))
    first, second = load(item, 2), load(two, 2)
    assert first.config == second.config
    assert all(tensor.equal(second.model[name]) for name, tensor in first.model.items())
