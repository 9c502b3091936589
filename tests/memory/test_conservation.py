"""The law of memories, with every codec: nothing is lost."""

import pytest
import torch
from torch import Generator, Size, Tensor

from atomo.codecs import CODECS, make_codec
from atomo.errors import CheckpointError, CodecError
from atomo.exchange.compressor import Compressor, add_frame
from atomo.fusion import plan
from atomo.memory import MEMORIES, NoMemory, Residual, default_memory, make_memory
from atomo.options.grouping import ONE
from atomo.wire import Compression

PARAMETERS = [("conv.weight", Size((8, 3, 3, 3))), ("conv.bias", Size((8,))), ("fc", Size((5, 9)))]


class Run:
    """Five steps of one worker, with the sums of its gradients and of its sent values."""

    def __init__(self, code: str, memory: Residual) -> None:
        self.memory = memory
        self.buckets = plan(PARAMETERS, make_codec(code), ONE)
        self.compressor = Compressor(memory, Compression(), worker=1, seed=0)
        self.came_in = torch.zeros(self.buckets[0].size)
        self.sent = torch.zeros(self.buckets[0].size)
        self.generator = Generator().manual_seed(1)

    def step(self, number: int) -> None:
        gradient = torch.randn(self.buckets[0].size, generator=self.generator)
        self.came_in += gradient
        frame = self.compressor.compress(self.buckets[0], gradient, number)
        add_frame(self.buckets[0], frame, self.sent, 1.0)

    def kept(self) -> Tensor:
        state = self.memory.state_dict()
        return torch.cat(
            [state.get(s.name, torch.zeros(s.shape)).flatten() for s in self.buckets[0].slots]
        )

    def check(self, counted: Tensor) -> None:
        # An unbiased codec and a residual feed each other's noise; rounding is relative to it.
        size = 1e-5 * max(1.0, float(self.sent.abs().max()))
        torch.testing.assert_close(counted + self.kept(), self.came_in, rtol=1e-5, atol=size)


@pytest.mark.parametrize("code", [*CODECS, "svd(selection=top)"])
def test_what_is_sent_and_what_is_kept_is_what_came_in(code):
    run = Run(code, Residual())
    for number in range(5):
        run.step(number)
    run.check(run.sent)


@pytest.mark.parametrize("code", [*CODECS, "svd(selection=top)"])
def test_a_decayed_residual_has_the_bits_of_a_residual_that_was_decayed_by_hand(code):
    """Checks sent + kept = decay kept + gradient, and a resume at every step."""
    decayed, plain = (Run(code, make_memory(spec)) for spec in ("residual(decay=0.95)", "residual"))
    for number in range(4):
        before = decayed.kept() * 0.95
        state = {name: kept * 0.95 for name, kept in decayed.memory.state_dict().items()}
        plain.memory.load_state_dict(state)
        for run in (decayed, plain):
            run.came_in, run.sent = before.clone(), torch.zeros_like(before)
            run.step(number)
        assert decayed.sent.equal(plain.sent)
        assert decayed.kept().equal(plain.kept())
        decayed.check(decayed.sent)
        decayed.memory.load_state_dict(decayed.memory.state_dict())


def test_a_lossless_codec_sends_the_decayed_residual_rounded_before_it_is_added():
    memory, layout = make_memory("residual(decay=0.95)"), {"a": Size((1000,))}
    drawn = Generator().manual_seed(3)
    kept, gradient = torch.randn(1000, generator=drawn), torch.randn(1000, generator=drawn)
    memory.load_state_dict({"a": kept})
    dense = make_codec("sgd")
    sent = dense.decode(memory.encode(dense, gradient.clone(), layout, drawn), Size((1000,)))
    assert sent.equal(kept * 0.95 + gradient)
    assert not memory.state_dict()["a"].any()


@pytest.mark.parametrize("code", [*CODECS, "svd(selection=top)"])
def test_what_never_counted_is_kept(code):
    run = Run(code, Residual())
    run.step(0)
    run.step(1)
    counted = run.sent.clone()
    run.step(2)
    run.compressor.take_back()
    run.check(counted)
    run.compressor.take_back()  # a second verdict on the same gradient changes nothing
    run.check(counted)
    run.sent = counted
    run.step(3)  # what was taken back goes out once, and is not kept as well
    run.check(run.sent)


def test_the_state_survives():
    run = Run("fp16", Residual())
    run.step(0)
    other = Residual()
    other.load_state_dict(run.memory.state_dict())
    for name, kept in other.state_dict().items():
        assert kept.equal(run.memory.state_dict()[name])


def test_the_state_is_a_copy():
    run = Run("fp16", Residual())
    run.step(0)
    before = {name: kept.clone() for name, kept in run.memory.state_dict().items()}
    held = run.memory.state_dict()
    run.step(1)
    assert all(held[name].equal(kept) for name, kept in before.items())


@pytest.mark.parametrize("kind", MEMORIES)
def test_the_state_is_what_is_kept_where_there_is_no_room_for_a_copy(kind):
    memory = MEMORIES[kind]()
    (bucket,) = plan(PARAMETERS, make_codec("topk(ratio=0.1)"), ONE)
    compressor = Compressor(memory, Compression(), worker=1, seed=0)
    gradient = torch.randn(bucket.size, generator=Generator().manual_seed(1))
    compressor.compress(bucket, gradient.clone(), 0)
    kept, copies = memory.state_dict(copy=False), memory.state_dict()
    assert bool(kept) == bool(memory.vectors) == (kind != "none")
    before = {name: one.clone() for name, one in copies.items()}
    compressor.compress(bucket, gradient, 1)
    now = memory.state_dict()
    assert all(one.equal(now[name]) for name, one in kept.items())
    assert all(one.equal(before[name]) for name, one in copies.items())
    assert not any(one.equal(now[name]) for name, one in copies.items() if one.dim())


def test_no_memory_refuses_a_state():
    with pytest.raises(CheckpointError, match="'none'"):
        NoMemory().load_state_dict({"weight": torch.ones(2)})


def test_biased_codecs_get_a_residual_and_unbiased_ones_none():
    defaults = {code: default_memory(make_codec(code)) for code in ("sgd", "svd", "fp16", "bf16")}
    assert defaults == {"sgd": "none", "svd": "none", "fp16": "residual", "bf16": "residual"}
    assert default_memory(make_codec("svd(selection=top)")) == "residual"
    assert set(defaults.values()) <= set(MEMORIES)


@pytest.mark.parametrize("code", ["svd(rank=1, selection=top)", "svd(rank=1)", "topk(ratio=0.2)"])
@pytest.mark.parametrize("make", [*MEMORIES.values(), lambda: Residual(0.9, 0.7)])
def test_several_at_once_are_sent_and_kept_as_each_alone(make, code):
    codec, layouts = make_codec(code), [{name: shape} for name, shape in PARAMETERS]
    together, alone, drawing = make(), make(), Generator().manual_seed(7)
    for _ in range(2):
        given = [torch.randn(shape, generator=drawing) for _, shape in PARAMETERS]
        seeds = [[Generator().manual_seed(n) for n in range(len(given))] for _ in "ab"]
        copies = [one.clone() for one in given]
        payloads = together.encode_all(codec, given, layouts, seeds[0])
        for n, payload in enumerate(payloads):
            other = alone.encode(codec, copies[n], layouts[n], seeds[1][n])
            pairs = zip(codec.sections(payload), codec.sections(other), strict=True)
            assert all(one.equal(two) for one, two in pairs)
    for name, kept in alone.state_dict().items():
        assert together.state_dict()[name].equal(kept)


@pytest.mark.parametrize("memory", [NoMemory, Residual])
def test_what_cannot_be_carried_is_named(memory):
    (bucket,) = plan([("a", Size((9, 5))), ("b", Size((9, 5)))], make_codec("svd"), ONE)
    flat = torch.ones(bucket.size)
    flat[bucket.slots[1].start] = float("nan")
    with pytest.raises(CodecError, match=f"gradient of {bucket.slots[1].name}: svd"):
        Compressor(memory(), Compression(), worker=1, seed=0).compress(bucket, flat, 1)
