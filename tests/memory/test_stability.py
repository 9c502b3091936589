"""Errors that are fed back: each codec's bound of them, and how much a memory holds after 60 steps.

A pair of codec and memory is accepted where the bound is below 1. Then a memory never holds more
than if nothing had been sent, however long it runs; where it is not, it holds thousands of times
the gradient within a few steps, or more and more.
"""

import math
from typing import Any

import pytest
import torch
from support.draws import roundtrip, seeded
from support.selection import slow_but
from torch import Tensor

import atomo
from atomo.codecs import CODECS, Law, make_codec
from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.hooks.options.hook_config import HookConfig
from atomo.memory import check_fits, make_memory

SHAPE = (64, 48)
LAYOUT = {"weight": torch.Size(SHAPE)}
STEPS = 60
MORE = [
    "qsgd(bits=3, bucket_size=128)", "qsgd(bits=8)", "qsgd(bits=2, norm=max)",
    "qsgd(bits=2, bucket_size=32)", "topk(ratio=0.1, values=qsgd)", "rows(values=qsgd)",
    "svd(rank=1, selection=top)", "svd(rank=2, selection=top, factors=qsgd(bits=4))",
    "svd(factors=fp16)", "randk(unbiased=False)", "topk(ratio=0.001)", "chunktopk(ratio=0.01)",
    "dgc(values=qsgd)", "terngrad(clip=0)", "qsgd(bits=2)", "qsgd(bits=3)",
    "qsgd(bits=1, norm=max)",
    "qsgd(bits=8, bucket_size=0)", "topk(values=qsgd(bits=2))", "rows(values=qsgd(bits=2))",
]  # fmt: skip
SPECS = [*CODECS, *MORE]
BOUNDED = [spec for spec in SPECS if make_codec(spec).error_bound < 1]
UNBOUNDED = [spec for spec in SPECS if make_codec(spec).error_bound >= 1]
QUICK = (
    "fp16",
    "natural",
    "qsgd",
    "efsignsgd",
    "topk",
    "qsgd(bits=2, norm=max)",
    "svd(factors=fp16)",
)


def gradient(step: int) -> Tensor:
    return torch.randn(SHAPE, generator=seeded(1000 + step)) * 0.01


def extremes() -> list[Tensor]:
    """Gradients of all kinds: normal, with a heavy tail, of one magnitude, and of one entry."""
    normal = gradient(0)
    lone = torch.full(SHAPE, 1e-6)
    lone[3, 5] = 1.0
    return [normal, normal**5, normal.sign(), lone, normal.abs().sqrt()]


def test_what_is_bounded_is_what_it_should_be():
    assert {"sketchml", "lss", "topk", "qsgd", "natural", "fp16"} <= {*BOUNDED}
    assert {*UNBOUNDED} == {
        "svd", "entrywise", "fourier", "atomo", "countsketch", "randk", "terngrad", "signsgd",
        "signum", "terngrad(clip=0)", "qsgd(bits=2)", "qsgd(bits=3)", "qsgd(bits=1, norm=max)",
        "qsgd(bits=8, bucket_size=0)", "topk(values=qsgd(bits=2))", "rows(values=qsgd(bits=2))",
    }  # fmt: skip


@pytest.mark.parametrize("spec", slow_but(QUICK, BOUNDED))
def test_no_error_is_beyond_its_bound(spec):
    codec = make_codec(spec)
    for given in extremes():
        errors = torch.stack([roundtrip(codec, given, seed) - given for seed in range(20)])
        square = float(errors.square().sum((1, 2)).mean() / given.square().sum())
        largest = float(errors.abs().amax() / given.abs().amax()) ** 2
        assert min(square, largest) <= codec.error_bound * 1.05 + 1e-12, (square, largest)


def held(spec: str, memory: str, momentum: float = 0.0) -> list[tuple[float, float]]:
    """Returns the content of a memory after each step, and its content if nothing were sent."""
    codec, keeping = make_codec(spec), make_memory(memory, momentum)
    velocity, unsent, found = torch.zeros(SHAPE), torch.zeros(SHAPE), []
    for step in range(STEPS):
        given = gradient(step)
        velocity = momentum * velocity + given
        unsent += velocity
        keeping.encode(codec, given, LAYOUT, seeded(step))
        state = keeping.state_dict()
        kept = state.get("velocity/weight", state.get("weight", torch.zeros(1)))
        found.append((float(kept.norm()), float(unsent.norm())))
    return found


PAIRS = [("residual", 0.0), pytest.param("dgc", 0.0, marks=pytest.mark.long), ("dgc", 0.9)]


@pytest.mark.parametrize(("memory", "momentum"), PAIRS)
@pytest.mark.parametrize("spec", slow_but(QUICK, BOUNDED))
def test_an_accepted_memory_holds_no_more_than_if_nothing_were_sent(spec, memory, momentum):
    check_fits(make_codec(spec), memory)
    steps = held(spec, memory, momentum)
    assert max(kept / max(unsent, float(gradient(0).norm())) for kept, unsent in steps) < 1.1
    noise = make_codec(spec).error_bound
    if Law.CONTRACTION not in make_codec(spec).laws and noise < 0.6 and not momentum:
        # |e| <= sqrt(bound) (|g| + |e|)
        most = math.sqrt(noise) / (1 - math.sqrt(noise))
        assert steps[-1][0] < most * float(gradient(0).norm())


@pytest.mark.parametrize(
    ("spec", "times"),
    [("qsgd(bits=2)", 1000), ("svd", 1000), ("terngrad", 8), ("countsketch", 1e6)],
)
def test_what_is_refused_would_have_grown(spec, times):
    kept, _ = held(spec, "residual")[-1]
    assert not kept < times * float(gradient(0).norm())  # or no number any more


@pytest.mark.parametrize("memory", ["residual", "dgc"])
@pytest.mark.parametrize("spec", UNBOUNDED)
def test_every_door_refuses_what_is_not_bounded(spec, memory):
    codec = make_codec(spec)
    doors: list[Any] = [
        lambda: check_fits(codec, memory),
        lambda: HookConfig(spec, memory).check(),
        lambda: Settings(code=spec, memory=memory).resolved(),
        lambda: Settings(code="topk", code_for=f"{spec}: weight", memory=memory).resolved(),
        lambda: atomo.encode(gradient(0), spec, seed=0, memory=make_memory(memory)),
    ]
    for door in doors:
        with pytest.raises(ConfigError, match=r"with memory \w+ diverges: its error, squared"):
            door()
