"""Manifests with one absurd value: no more than an error of ours, and other checkpoints serve."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.absurd import documents
from support.evaluations import checkpoint, nothing, order, settings, small

from atomo.errors import AtomoError, CheckpointError
from atomo.training.checkpoints.checkpoint import finish, load, steps
from atomo.training.checkpoints.manifest import manifest_name
from atomo.training.checkpoints.resume import newest
from atomo.training.evaluation.evaluator import Evaluation, Missed, evaluate
from atomo.workloads import images
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

__all__ = ["small"]  # pytest finds it here: a network and a data set that take no time

HUGE = (2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**40)  # steps; the first is one that no float has
DRAWN = 120  # of all documents


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Returns the folder of a run that is over, with three checkpoints."""
    for step in (1, 2, 3):
        checkpoint(tmp_path, step)
    finish(tmp_path, 3, "done")
    return tmp_path


def evaluated(folder: Path) -> list[Evaluation | Missed]:
    evaluations: list[Evaluation | Missed] = []
    try:
        evaluate(settings(folder, patience_s=0.0), evaluations.append, wait=lambda _: nothing())
    finally:
        (folder / "evaluations.jsonl").unlink(missing_ok=True)
    return evaluations


def renamed(folder: Path, step: int, other_step: int) -> bytes:
    """Returns the manifest of a step, as that of another, which lists files of that name."""
    text = (
        (folder / manifest_name(step))
        .read_text()
        .replace(f"step-{step:08}", f"step-{other_step:08}")
    )
    return json.dumps(json.loads(text) | {"step": other_step}).encode()


def absurd(folder: Path) -> Iterator[bytes]:
    """Yields manifests of step 2 with one value changed: a random sample of all such manifests."""
    candidates = [*documents(json.loads((folder / manifest_name(2)).read_bytes()))]
    yield from random.Random(1).sample(candidates, DRAWN)


@pytest.mark.parametrize("step", HUGE)
def test_a_checkpoint_of_a_step_that_no_run_reaches_is_left_out(run, step):
    (run / manifest_name(step)).write_bytes(renamed(run, 3, step))
    for part in ("model", "optimizer", "worker-1"):
        data = (run / f"step-00000003.{part}.safetensors").read_bytes()
        (run / f"step-{step:08}.{part}.safetensors").write_bytes(data)
    messages: list[str] = []
    assert newest(run, steps(run), messages.append).step == 3
    assert [f"step {step} is left out" in line for line in messages] == [True]
    assert order(evaluated(run)) == [1, 2, 3, -step]
    with pytest.raises(CheckpointError, match=rf"manifest of step {step}; .* at most {2**53}"):
        load(run, step, patience_s=0.0)


def test_the_evaluator_goes_on_after_a_manifest_with_an_absurd_step(run):
    good = json.loads((run / manifest_name(2)).read_bytes())
    for step in HUGE:
        (run / manifest_name(2)).write_text(json.dumps(good | {"step": step}))
        assert order(evaluated(run)) == [1, -2, 3]


@pytest.mark.slow
def test_absurd_manifests_lead_to_no_other_error_than_ours(run, monkeypatch):
    own_data, own_model = images.load_dataset, images.build_model

    # The fixture's own network and data set, and the real ones' errors for any other name.
    monkeypatch.setattr(
        images,
        "load_dataset",
        lambda name, *more: (own_data if name == "Noise" else load_dataset)(name, *more),
    )
    monkeypatch.setattr(
        images,
        "build_model",
        lambda name, *more: (own_model if name == "Plain" else build_model)(name, *more),
    )
    whole = (run / manifest_name(2)).read_bytes()
    for content in absurd(run):
        (run / manifest_name(2)).write_bytes(content)
        try:
            resumed = newest(run, [1, 2], lambda _: None).step
            reports = order(evaluated(run))
        except AtomoError:  # of a network or a data set that is none: a person is to see to it
            assert json.loads(content)["config"] != json.loads(whole)["config"]
        except BaseException as error:
            raise AssertionError(f"{type(error).__name__} for {content[:500]!r}") from error
        else:
            # An evaluator reads the model alone: what is wrong with another file is no matter.
            assert reports == [1, 2, 3] or (resumed, reports) == (1, [1, -2, 3]), content[:500]
