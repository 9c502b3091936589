"""DGC's memory against a reference written from the paper, and the store below all memories."""

import math

import pytest
import torch
from torch import Generator, Size, Tensor

from atomo.codecs import Codec, make_codec
from atomo.codecs.momentum import MomentumState
from atomo.errors import CheckpointError, CodecError, ConfigError
from atomo.memory import MomentumCorrection, Residual
from atomo.memory.store import Store

LAYOUT = {"a": Size((20, 10)), "b": Size((7, 3))}
N = 221


def gradients(steps: int) -> list[Tensor]:
    generator = Generator().manual_seed(3)
    return [torch.randn(N, generator=generator) for _ in range(steps)]


def encode(memory, code: str, gradient: Tensor, layout=LAYOUT) -> Tensor:
    codec = make_codec(code)
    payload = memory.encode(codec, gradient.clone(), layout, Generator().manual_seed(0))
    return codec.decode(payload, gradient.shape)


class Reference:
    """Algorithm 1 of the paper, with lists."""

    def __init__(self, m: float, nesterov: bool, masking: bool, clip: float) -> None:
        self.m, self.nesterov, self.masking, self.clip = m, nesterov, masking, clip
        self.u, self.v = [0.0] * N, [0.0] * N

    def step(self, gradient: list[float], k: int) -> list[float]:
        norm = math.sqrt(sum(g * g for g in gradient))
        if self.clip and norm > self.clip:
            gradient = [g * self.clip / norm for g in gradient]
        for i, g in enumerate(gradient):
            if self.nesterov:
                self.u[i] = self.m * (self.u[i] + g)
                self.v[i] += self.u[i] + g
            else:
                self.u[i] = self.m * self.u[i] + g
                self.v[i] += self.u[i]
        sent = [0.0] * N
        for i in sorted(range(N), key=lambda i: -abs(self.v[i]))[:k]:
            sent[i], self.v[i] = self.v[i], 0.0
            if self.masking:
                self.u[i] = 0.0
        return sent


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("clip", [0.0, 9.0])
def test_is_the_algorithm_of_the_paper(nesterov, masking, clip):
    reference = Reference(0.9, nesterov, masking, clip / 2)
    memory = MomentumCorrection(0.9, nesterov, masking, clip, workers=4)
    for gradient in gradients(8):
        memory.begin(float(gradient.norm()))
        sent = encode(memory, "topk(ratio=0.1)", gradient)
        expected = torch.tensor(reference.step(gradient.tolist(), 22))
        torch.testing.assert_close(sent, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize(
    "code", ["dgc(ratio=0.05, values=fp16)", "dragonn", "threshold(value=2)", "topk(ratio=0.1)"]
)
def test_one_pass_does_what_its_steps_do(code, masking, nesterov):
    """Uses a momentum of 1/2, whose products are exact in any order of additions."""
    codec, found = make_codec(code), []
    for encode_momentum in (type(codec).encode_momentum, Codec.encode_momentum):
        velocity, kept, gradient = torch.randn(3, 50, 60, generator=Generator().manual_seed(1))
        momentum = MomentumState(velocity, 0.5, nesterov, masking)
        args = gradient, momentum, kept, Generator().manual_seed(2)
        sections = list(codec.sections(encode_momentum(codec, *args)))
        found.append([*sections, velocity, kept])
    for one, other in zip(*found, strict=True):
        assert one.equal(other)


@pytest.mark.parametrize("code", ["dgc(ratio=0.05, values=fp16)", "topk(ratio=0.1, values=bf16)"])
def test_what_coding_the_values_loses_stays_and_the_momentum_of_what_was_sent_goes(code):
    memory, came_in, went_out = MomentumCorrection(0.5), torch.zeros(N), torch.zeros(N)
    for gradient in gradients(5):
        before = memory.state_dict()
        momentum = join(before, "momentum/") * 0.5 + gradient
        came_in += momentum
        sent = encode(memory, code, gradient)
        went_out += sent
        after = join(memory.state_dict(), "momentum/")
        assert after.equal(torch.where(sent != 0, torch.zeros(()), momentum))
    kept = join(memory.state_dict(), "velocity/")
    torch.testing.assert_close(went_out + kept, came_in)
    assert (kept[sent != 0] != 0).any()  # rounding errors


def join(state: dict[str, Tensor], prefix: str) -> Tensor:
    return torch.cat([state.get(prefix + n, torch.zeros(s)).flatten() for n, s in LAYOUT.items()])


def test_the_momentum_of_a_value_that_was_coded_as_zero_goes_too():
    memory = MomentumCorrection()
    gradient = torch.zeros(N)
    gradient[3], gradient[7] = 1e4, 1e-9  # the second is zero in half precision beside the first
    sent = encode(memory, "topk(ratio=0.01, values=fp16)", gradient)
    assert sent[3] == 1e4
    assert sent[7] == 0
    assert not join(memory.state_dict(), "momentum/").any()
    assert join(memory.state_dict(), "velocity/")[7] == gradient[7]


@pytest.mark.parametrize("code", ["chunktopk(ratio=0.5)", "dragonn", "randk(unbiased=False)"])
def test_masks_for_every_kind_of_codec_that_leaves_entries(code):
    memory = MomentumCorrection()
    (gradient,) = gradients(1)
    sent = encode(memory, code, gradient)
    momentum = join(memory.state_dict(), "momentum/")
    assert momentum.equal(torch.where(sent != 0, torch.zeros(()), gradient))


def in_time(grown: Tensor, waiting: Tensor, nesterov: bool, workers: int) -> Tensor:
    if nesterov:
        return (workers**2 * grown.norm() / waiting.norm()).clamp(max=1)
    return grown.abs() / (grown.abs() + waiting.abs())


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("code", ["efsignsgd", "onebit", "svd(rank=2, selection=top)"])
def test_where_all_entries_are_sent_what_waited_loses_momentum(code, nesterov, workers):
    memory = MomentumCorrection(0.9, nesterov, workers=workers)
    u, v = torch.zeros(N), torch.zeros(N)
    for gradient in gradients(4):
        u = 0.9 * (u + gradient) if nesterov else 0.9 * u + gradient
        grown = u + gradient if nesterov else u
        u = u * in_time(grown, v, nesterov, workers)
        v = v + grown - encode(memory, code, gradient)
        torch.testing.assert_close(join(memory.state_dict(), "momentum/"), u)
        torch.testing.assert_close(join(memory.state_dict(), "velocity/"), v)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("masking", [False, True])
def test_what_is_held_for_a_sum_keeps_the_momentum_that_is_in_time(masking, nesterov, workers):
    memory = MomentumCorrection(0.9, nesterov, masking, workers=workers)
    u, v = torch.zeros(N), torch.zeros(N)
    for gradient in gradients(4):
        u = 0.9 * (u + gradient) if nesterov else 0.9 * u + gradient
        grown = u + gradient if nesterov else u
        u = u * in_time(grown, v, nesterov, 1) if masking else u  # waits with all alike
        held = memory.hold(gradient.clone(), LAYOUT)
        torch.testing.assert_close(held, v + grown)
        sent = held / 8
        v = held.sub_(sent).clone()  # what a reduction subtracts counts as sent
        torch.testing.assert_close(join(memory.state_dict(), "momentum/"), u)
        assert join(memory.state_dict(), "velocity/").equal(v)


@pytest.mark.parametrize(
    ("nesterov", "masking", "delay", "stable"),
    [
        (False, False, 0.0, True),
        (False, False, 1.0, False),
        (False, True, 1.0, True),
        (False, True, 4.0, True),
        (True, False, 1.0, True),
        (True, False, 4.0, False),
        (True, True, 1.0, True),
        (True, True, 4.0, True),
    ],
)
def test_heavy_ball_momentum_and_a_delay_need_masking_and_nesterov_s_cancels_a_step(
    nesterov, masking, delay, stable
):
    """Descends on a quadratic at a twentieth of the rate that plain momentum bears."""
    memory, weight = MomentumCorrection(0.9, nesterov, masking), torch.ones(N)
    for _ in range(400):
        held = memory.hold(0.2 * weight, LAYOUT)
        sent = held / (1 + delay)
        held.sub_(sent)
        weight -= sent
    assert (weight.norm() < 1) == stable


def test_what_is_held_without_momentum_is_a_residual_s():
    memory = MomentumCorrection(momentum=0.0, clip=3.0)
    (gradient,) = gradients(1)
    norm = float(gradient.norm())
    memory.begin(norm)
    torch.testing.assert_close(memory.hold(gradient.clone(), LAYOUT), gradient * min(1, 3 / norm))


def test_where_nothing_waits_momentum_is_that_of_plain_sgd():
    """Checks a lossless codec, which sends everything in time."""
    memory, momentum = MomentumCorrection(0.5), torch.zeros(N)
    for gradient in gradients(3):
        momentum = 0.5 * momentum + gradient.round()  # all of which is exact in half precision
        assert encode(memory, "fp16", gradient.round()).equal(momentum)
    assert join(memory.state_dict(), "momentum/").equal(momentum)


def test_dense_parameters_get_momentum_at_once():
    memory, momentum = MomentumCorrection(), torch.zeros(N)
    for gradient in gradients(4):
        momentum = 0.9 * momentum + gradient
        torch.testing.assert_close(encode(memory, "sgd", gradient), momentum)


@pytest.mark.parametrize("code", ["topk(ratio=0.1)", "sgd"])
def test_what_is_taken_back_goes_out_later(code):
    memory = MomentumCorrection(momentum=0.0)
    first, second = gradients(2)
    memory.take_back(LAYOUT, encode(memory, code, first))
    assert join(memory.state_dict(), "velocity/").equal(first)
    torch.testing.assert_close(encode(memory, "sgd", second), first + second)


def test_a_state_says_velocity_of_what_waits_and_momentum_of_the_velocity():
    """Holds the keys of stored checkpoints: v under "velocity/", u under "momentum/"."""
    memory = MomentumCorrection(momentum=0.5)
    u, v, gradient = gradients(3)
    state = {}
    for prefix, vector in (("momentum/", u), ("velocity/", v)):
        for (name, shape), part in zip(LAYOUT.items(), vector.split([200, 21]), strict=True):
            state[prefix + name] = part.view(shape)
    memory.load_state_dict(state)
    assert join(memory.state_dict(), "velocity/").equal(v)
    torch.testing.assert_close(encode(memory, "sgd", gradient), v + 0.5 * u + gradient)


def test_the_state_survives_another_division():
    whole, resumed = MomentumCorrection(), MomentumCorrection()
    first, second = gradients(2)
    encode(whole, "topk(ratio=0.1)", first)
    resumed.load_state_dict(whole.state_dict())
    for name, part in zip(LAYOUT, second.split([200, 21]), strict=True):
        encode(resumed, "topk(ratio=1.0)", part, {name: LAYOUT[name]})
    sent = encode(whole, "topk(ratio=1.0)", second)
    assert sent.count_nonzero() == N
    for name, kept in whole.state_dict().items():
        assert resumed.state_dict()[name].equal(kept)
    with pytest.raises(CheckpointError, match="'weight'"):
        resumed.load_state_dict({"weight": torch.ones(2)})


def test_bad_settings_are_refused():
    for settings in ({"momentum": 1.0}, {"momentum": -0.1}, {"clip": -1.0}, {"workers": 0}):
        with pytest.raises(ConfigError, match="dgc"):
            MomentumCorrection(**settings)
    with pytest.raises(CodecError, match="nan"):
        MomentumCorrection(clip=1.0).begin(float("nan"))


def test_a_store_regroups_and_forgets_nothing():
    store, like = Store(), torch.zeros(1)
    store.vector(LAYOUT, like).copy_(torch.arange(N))
    single = {"b": LAYOUT["b"]}
    assert store.vector(single, like).equal(torch.arange(200.0, N))
    store.vector(single, like).add_(1)
    assert store.vector(LAYOUT, like).equal(
        torch.cat([torch.arange(200.0), torch.arange(201.0, N + 1)])
    )
    assert store.vector(LAYOUT, like).data_ptr() == store.vector(LAYOUT, like).data_ptr()
    assert list(store.state_dict()) == ["a", "b"]


def test_nothing_of_the_size_of_the_gradient_is_allocated_from_step_to_step():
    memory = Residual()
    first, second = gradients(2)
    encode(memory, "topk(ratio=0.1)", first)
    where = memory._kept.vector(LAYOUT, first).data_ptr()
    encode(memory, "topk(ratio=0.1)", second)
    assert memory._kept.vector(LAYOUT, first).data_ptr() == where


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_momentum_it_is_a_residual_and_keeps_no_velocity(nesterov):
    memory, residual = MomentumCorrection(0.0, nesterov), Residual()
    for gradient in gradients(4):
        for code in ("topk(ratio=0.1)", "sgd"):
            sent = encode(memory, code, gradient, {code: Size((N,))})
            assert sent.equal(encode(residual, code, gradient, {code: Size((N,))}))
    assert list(memory.state_dict()) == ["velocity/topk(ratio=0.1)"]
