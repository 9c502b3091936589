"""Every codec, on its defaults, brings the loss down."""

import pytest
from support.harness import run_threads, settings
from support.networks import SMALL
from support.selection import slow_but

from atomo.codecs import CODECS
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.events import Event, StepDone

# A step of signs is as long as the learning rate, for which a run on defaults is cautioned.
# The master's momentum makes those of signSGD ten times as long, with which this network diverges.
OPTIONS: dict[str, dict[str, object]] = {
    "signsgd": {"lr": 0.0005, "momentum": 0.0},
    "signum": {"lr": 0.0005},
    # Of few entries these draw few, or chunks that are a large part of a layer.
    "entrywise": {"network": "FC"},
    "randk": {"network": "FC"},
    "chunktopk": {"network": "FC"},
}

FEW = {"qsgd"}  # test_convergence.py trains others


@pytest.mark.long(
    cases=(
        "atomo",
        "bf16",
        "chunktopk",
        "countsketch",
        "dgc",
        "dragonn",
        "efsignsgd",
        "entrywise",
        "fourier",
        "fp16",
        "lloydmax",
        "lss",
        "natural",
        "randk",
        "rows",
        "signum",
        "sgd",
        "sketchml",
        "terngrad",
        "threshold",
        "tiletopk",
        "topk",
    )
)
@pytest.mark.parametrize("code", slow_but(FEW, CODECS))
def test_the_loss_comes_down_and_the_states_reach_the_checkpoint(code, tmp_path):
    events: list[Event] = []
    common: dict[str, object] = {"code": code, "network": SMALL, "batch_size": 32, "max_steps": 44}
    chosen = settings(tmp_path, **(common | OPTIONS.get(code, {})))
    run_threads(chosen, events.append)
    losses = [event.loss for event in events if isinstance(event, StepDone)]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    residuals = [name for name in load(tmp_path, 44).workers[0] if name.startswith("memory/")]
    assert bool(residuals) == (chosen.memory != "none")
