"""Codecs that change while training runs."""

import pytest
from support.harness import run_threads, settings

from atomo.errors import ConfigError
from atomo.options.schedule import phases
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.events import Event, StepDone


def test_the_schedule_begins_with_the_code_unless_it_says_otherwise():
    assert [(p.epoch, str(p.codec)) for p in phases("sgd", "1.5: fp16; 3: svd(rank=2)")] == [
        (0.0, "sgd"),
        (1.5, "fp16"),
        (3.0, "svd(rank=2)"),
    ]
    assert [str(p.codec) for p in phases("sgd", "0: bf16")] == ["bf16"]
    assert [str(p.codec) for p in phases("sgd", "")] == ["sgd"]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("fp16", "cannot read 'fp16'"),
        ("-1: fp16", "cannot read"),
        ("nan: fp16", "cannot read"),
        ("1: zip", "unknown codec 'zip'"),
        ("2: fp16; 1: sgd", "epoch 1 comes after epoch 2"),
    ],
)
def test_a_bad_schedule_says_what_is_wrong(schedule, message):
    with pytest.raises(ConfigError, match=message):
        phases("sgd", schedule)


@pytest.mark.slow
def test_the_codec_changes_at_its_step_and_memory_stays(tmp_path):
    chosen = settings(
        tmp_path,
        network="FC",
        code="fp16",
        batch_size=64,  # 11 steps an epoch
        code_schedule="0.5: svd(rank=1, selection=top); 1: sgd",
        max_steps=15,
        eval_freq=9,
    )
    told: list[Event] = []
    run_threads(chosen, told.append)
    sent = [event.up_bytes for event in told if isinstance(event, StepDone)]
    assert min(sent[:6]) > 5 * max(sent[6:11])
    assert min(sent[11:]) > 5 * max(sent[6:11])
    middle = load(tmp_path, 9).workers[0]
    assert any(name.startswith("memory/") and tensor.any() for name, tensor in middle.items())
