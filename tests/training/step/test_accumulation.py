"""Several batches a step are one batch of all their images, of which the gradient is sent once."""

import pytest
from support.harness import largest_difference, plain_sgd, run_threads, settings

from atomo.config.identity import check_identity, record
from atomo.errors import ConfigError
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.events import Event, StepDone

SHORT = {"network": "LeNet", "code": "sgd", "max_steps": 4, "fusion_mb": 0.2}


@pytest.mark.slow(cases=("{'comm_type'",))
@pytest.mark.parametrize("way", [{}, {"comm_type": "Allreduce", "n": 2}], ids=str)
def test_batches_of_a_step_are_one_large_batch(way, tmp_path):
    whole = settings(tmp_path / "whole", batch_size=24, **SHORT, **way)
    parts = settings(tmp_path / "parts", batch_size=8, batches_per_step=3, **SHORT, **way)
    events: list[Event] = []
    run_threads(parts, events.append)
    model = load(tmp_path / "parts", 4).model
    assert largest_difference(plain_sgd(whole), model) < 1e-6
    done = [event for event in events if isinstance(event, StepDone)]
    assert len(done) == 4
    # One exchange a step: the bytes of one gradient of each worker, not of three.
    assert all(event.up_bytes < 1.1 * event.dense_bytes for event in done)


@pytest.mark.slow
def test_what_is_told_of_a_step_is_of_all_its_batches(tmp_path):
    events: dict[str, list[StepDone]] = {}
    for name, batches in {"whole": (24, 1), "parts": (8, 3)}.items():
        own: list[Event] = []
        size, count = batches
        run_threads(
            settings(tmp_path / name, batch_size=size, batches_per_step=count, **SHORT), own.append
        )
        events[name] = [event for event in own if isinstance(event, StepDone)]
    for whole_step, summed_step in zip(events["whole"], events["parts"], strict=True):
        assert whole_step.loss == pytest.approx(summed_step.loss, rel=1e-5)
        assert whole_step.accuracy == summed_step.accuracy
        assert whole_step.epoch == summed_step.epoch


def test_a_checkpoint_of_before_had_one_batch_a_step(tmp_path):
    chosen = settings(tmp_path)
    old = {name: value for name, value in record(chosen).items() if name != "batches_per_step"}
    check_identity(chosen, old, tmp_path)
    with pytest.raises(ConfigError, match=r"--batches-per-step 2 .before: 1.*"):
        check_identity(settings(tmp_path, batches_per_step=2), old, tmp_path)


def test_workers_and_batches_scale_the_rate(tmp_path):
    scaled = settings(tmp_path, n=5, batches_per_step=3, lr=0.1, lr_scale_by_workers=True)
    assert scaled.peak_lr == pytest.approx(1.2)
    assert scaled.warmup_from == pytest.approx(1 / 12)
