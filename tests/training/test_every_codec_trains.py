"""Every codec, with the memory it was published with, brings the loss down."""

import pytest
from support import run_threads, settings

from atomo.codecs import CODECS
from atomo.training.checkpoint import load
from atomo.training.events import Event, StepDone

# What takes another learning rate or needs more entries than a small layer has.
OPTIONS: dict[str, dict[str, object]] = {
    "signsgd": {"lr": 0.0005, "momentum": 0.0},
    "signum": {"lr": 0.0005},
    "onebit": {"lr": 0.01},
    "efsignsgd": {"lr": 0.01},
    "threshold": {"code": "threshold(value=0.005)"},
    "dgc": {"code": "dgc(ratio=0.05)", "lr": 0.01},
    "topk": {"code": "topk(ratio=0.05)", "lr": 0.01},
    "chunktopk": {"code": "chunktopk(ratio=0.05)", "lr": 0.01},
    "dragonn": {"code": "dragonn(ratio=0.05)", "lr": 0.01},
    "randk": {"code": "randk(ratio=0.1, unbiased=False)", "lr": 0.005},
    "countsketch": {"lr": 0.002},
    "entrywise": {"code": "entrywise(budget=0.1)", "lr": 0.005},
    "fourier": {"code": "fourier(budget=0.1)", "lr": 0.005},
    "terngrad": {"lr": 0.005},
    "qsgd": {"lr": 0.01},
}


FEW = {"svd", "dgc", "qsgd", "efsignsgd"}  # a family each


@pytest.mark.parametrize(
    "code", [pytest.param(c, marks=[] if c in FEW else pytest.mark.slow) for c in CODECS]
)
def test_the_loss_comes_down_and_the_states_reach_the_checkpoint(code, tmp_path):
    told: list[Event] = []
    common: dict[str, object] = {"code": code, "network": "FC", "batch_size": 32, "max_steps": 44}
    chosen = settings(tmp_path, **(common | OPTIONS.get(code, {})))
    run_threads(chosen, told.append)
    losses = [event.loss for event in told if isinstance(event, StepDone)]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    kept = [name for name in load(tmp_path, 44).workers[0] if name.startswith("memory/")]
    assert bool(kept) == (chosen.memory != "none")
