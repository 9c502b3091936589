"""Memories by their specification, and the effects of their settings."""

import pytest
import torch
from support.harness import plain_sgd, run_threads, settings
from torch import Generator, Size

from atomo.codecs import make_codec
from atomo.errors import ConfigError
from atomo.memory import MEMORIES, canonical_memory, kind_of, make_memory
from atomo.training.checkpoints.checkpoint import load

LAYOUT = {"a": Size((40,))}


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        *((name, name) for name in MEMORIES),
        ("Residual(beta=1)", "residual(beta=1.0)"),
        ("residual(decay=0.95)", "residual(beta=0.95)"),
        ("residual(decay=1)", "residual(beta=1.0)"),
        ("dgc(clip=6, masking=False)", "dgc(clip=6.0, masking=False)"),
        ("momentum( beta = 0.5 )", "momentum(beta=0.5)"),
    ],
)
def test_a_specification_has_one_spelling(spec, meant):
    assert canonical_memory(spec) == meant
    assert canonical_memory(meant) == meant
    assert isinstance(make_memory(spec), kind_of(meant))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("residal", r"unknown memory 'residal'; did you mean 'residual'\?"),
        ("residual(gama=2)", r"residual: unknown setting 'gama'; did you mean 'gamma'\?"),
        ("residual(beta=2)", r"beta \(decay\) must be in \[0, 1\].*got 2"),
        ("residual(decay=2)", r"beta \(decay\) must be in \[0, 1\].*got 2"),
        ("residual(decay=often)", r"decay must be of type float, got 'often'"),
        ("residual(beta=1, decay=1)", r"decay and beta are one setting"),
        ("residual(units=weight)", r"units must be gradient or update, got 'weight'"),
        ("residual(gamma=0)", r"gamma above 0, got 1\.0 and 0"),
        ("momentum(beta=1)", r"beta must be in \[0, 1\), got 1"),
        ("dgc(masking=1)", r"masking must be of type bool, got 1"),
        ("dgc(clip=-1)", r"clip must be 0 or more"),
        ("dgc(momentum=0.5)", r"unknown setting 'momentum'"),
        ("none(x=1)", r"none: unknown setting 'x'; known: none"),
        ("residual(", r"cannot read"),
    ],
)
def test_what_is_wrong_is_named(spec, message):
    with pytest.raises(ConfigError, match=message):
        canonical_memory(spec)


def test_a_residual_leaks_and_weighs_only_where_it_is_told_to():
    codec, kept = make_codec("topk(ratio=0.1)"), torch.zeros(40)
    memory = make_memory("residual(beta=0.5, gamma=2)")
    generator = Generator().manual_seed(4)
    for _ in range(4):
        gradient = torch.randn(40, generator=generator)
        whole = 0.5 * kept + 2 * gradient
        payload = memory.encode(codec, gradient.clone(), LAYOUT, generator)
        sent = codec.decode(payload, Size((40,)))
        assert sent.count_nonzero() == 4
        kept = whole - sent
        torch.testing.assert_close(memory.state_dict()["a"], kept)
    # A lossless codec takes what is kept along, leaked as much.
    gradient = torch.randn(40, generator=generator)
    dense = make_codec("sgd")
    payload = memory.encode(dense, gradient.clone(), LAYOUT, generator)
    torch.testing.assert_close(dense.decode(payload, Size((40,))), 0.5 * kept + 2 * gradient)
    assert not memory.state_dict()["a"].any()


RATES = (0.5, 0.5, 0.05, 0.05, 0.2)


@pytest.mark.parametrize("code", ["efsignsgd", "topk(ratio=0.1)", "svd(rank=1, selection=top)"])
def test_a_residual_in_units_of_the_update_is_ef_signsgd_while_the_rate_changes(code):
    """Follows Algorithm 2 of Karimireddy et al.: p = lr g + e, x = x - C(p), e = p - C(p)."""
    codec, shape, layout = make_codec(code), Size((8, 5)), {"a": Size((8, 5))}
    memory, draws = make_memory("residual(units=update)"), Generator().manual_seed(4)
    kept, moved, ours = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    for step, rate in enumerate(RATES):
        gradient = torch.randn(shape, generator=draws)
        wanted = rate * gradient + kept
        sent = codec.decode(codec.encode(wanted, Generator().manual_seed(0)), shape)
        kept, moved = wanted - sent, moved + sent
        if step == 3:  # as after a resume
            state = memory.state_dict()
            memory = make_memory("residual(units=update)")
            memory.load_state_dict(state)
        announce = memory.at_rate if step % 2 else memory.set_learning_rate  # at_rate: as before
        announce(rate)
        payload = memory.encode(codec, gradient, layout, Generator().manual_seed(0))
        ours += rate * codec.decode(payload, shape)
        torch.testing.assert_close(ours, moved, rtol=1e-4, atol=1e-5)


def test_workers_hear_of_the_learning_rate_before_each_step(tmp_path):
    """Lowers the rate a thousandfold: the residual of the first step, a part of an update, then
    counts a thousand times as much."""
    kept = {}
    for units in ("gradient", "update"):
        chosen = settings(
            tmp_path / units, code="topk", memory=f"residual(units={units})", network="FC", n=2,
            max_steps=2, lr=0.1, lr_shrinkage=0.001, lr_shrink_freq=1, momentum=0.0,
        )  # fmt: skip
        run_threads(chosen)
        kept[units] = load(tmp_path / units, 2).workers[0]
    assert float(kept["update"].pop("memory//learning-rate")) == pytest.approx(1e-4)
    norms = {units: max(float(t.norm()) for t in state.values()) for units, state in kept.items()}
    assert norms["update"] > 100 * norms["gradient"]


@pytest.mark.slow(cases=("3",))
@pytest.mark.parametrize("n", [2, 3])
def test_every_worker_clips_its_whole_gradient(tmp_path, n):
    """Lossless and without momentum, DGC's local clipping is a step of known length at most."""
    common = {"network": "FC", "code": "sgd", "momentum": 0.0, "n": n, "max_steps": 1, "lr": 1.0}
    chosen = settings(tmp_path, memory="dgc(clip=0.01)", fusion_mb=0.05, **common)
    before = plain_sgd(settings(tmp_path / "none", **(common | {"lr": 1e-30})))
    run_threads(chosen)
    after = load(tmp_path, 1).model
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before]).norm()
    # Averaging gradients of one length in different directions shortens them.
    most = 0.01 / (n - 1) ** 0.5
    assert 0.5 * most < float(moved) <= most * 1.001
    if n == 2:
        assert float(moved) == pytest.approx(most, rel=1e-3)
