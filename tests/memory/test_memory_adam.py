"""The memory behind Adam's preconditioner: Adam's own update, of which nothing is lost."""

import pytest
import torch
from support.draws import seeded
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.errors import CheckpointError, ConfigError
from atomo.hooks.states.memories import add_up, blank, filled
from atomo.memory import EfficientAdam, make_memory

SHAPES = {"weight": Size((6, 5)), "bias": Size((6,))}
BETA1, BETA2, EPS = 0.8, 0.95, 1e-6
SPEC = f"adam(beta1={BETA1}, beta2={BETA2}, eps={EPS})"


def gradients(step: int) -> dict[str, Tensor]:
    draws = seeded(step)
    return {name: torch.randn(shape, generator=draws) for name, shape in SHAPES.items()}


def updates_of_pytorch(steps: int) -> dict[str, Tensor]:
    """Sums the updates that torch.optim.Adam makes of the same gradients."""
    weights = {name: torch.zeros(shape, requires_grad=True) for name, shape in SHAPES.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=1.0, betas=(BETA1, BETA2), eps=EPS)
    for step in range(steps):
        for name, gradient in gradients(step).items():
            weights[name].grad = gradient
        optimizer.step()
    return {name: -tensor.detach() for name, tensor in weights.items()}


def send(memory: EfficientAdam, code: str, step: int, name: str) -> Tensor:
    """Encodes one parameter's gradient, and returns the sent values."""
    codec, layout = make_codec(code), {name: SHAPES[name]}
    payload = memory.encode(codec, gradients(step)[name], layout, seeded(step))
    return codec.decode(payload, SHAPES[name])


def check(memory: EfficientAdam, sent: dict[str, Tensor], steps: int) -> None:
    """Checks that sent values plus the residual equal the sum of Adam's updates."""
    state = memory.state_dict()
    for name, update in updates_of_pytorch(steps).items():
        kept = state.get(f"residual/{name}", torch.zeros(SHAPES[name]))
        torch.testing.assert_close(sent[name] + kept, update, rtol=1e-4, atol=1e-5)
        assert float(state[f"steps/{name}"]) == steps


@pytest.mark.parametrize("code", ["sgd", "topk(ratio=0.2)", "efsignsgd", "onebit"])
def test_what_is_sent_and_what_is_kept_is_adams_update(code):
    memory, sent = make_memory(SPEC), {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(6):
        for name in SHAPES:
            sent[name] += send(memory, code, step, name)
        if step == 2:  # as after a resume
            state, memory = memory.state_dict(), make_memory(SPEC)
            memory.load_state_dict(state)
        check(memory, sent, step + 1)
    lost = send(memory, code, 6, "bias")
    memory.take_back({"bias": SHAPES["bias"]}, lost.flatten())
    sent["weight"] += send(memory, code, 6, "weight")
    check(memory, sent, 7)


def test_another_division_into_buckets_goes_on_with_the_same_moments():
    codec, joined, alone = make_codec("topk(ratio=0.2)"), make_memory(SPEC), make_memory(SPEC)
    size, sent = sum(shape.numel() for shape in SHAPES.values()), torch.zeros(())
    for step in range(4):
        flat = torch.cat([one.flatten() for one in gradients(step).values()])
        if step < 2:
            payload = joined.encode(codec, flat, SHAPES, seeded(step))
            sent = sent + codec.decode(payload, Size((size,)))
        else:
            parts = [send(joined, "topk(ratio=0.2)", step, name).flatten() for name in SHAPES]
            sent = sent + torch.cat(parts)
        for name in SHAPES:
            send(alone, "topk(ratio=0.2)", step, name)
    pieces = torch.split(sent, [shape.numel() for shape in SHAPES.values()])
    check(joined, {n: p.view(SHAPES[n]) for n, p in zip(SHAPES, pieces, strict=True)}, 4)
    for name, entry in alone.state_dict().items():
        if not name.startswith("residual/"):
            torch.testing.assert_close(joined.state_dict()[name], entry)


def test_a_parameter_that_misses_steps_counts_its_own():
    memory = make_memory("adam")
    send(memory, "sgd", 0, "weight")
    send(memory, "sgd", 1, "weight")
    update = send(memory, "sgd", 2, "bias")
    torch.testing.assert_close(update, gradients(2)["bias"].sign(), rtol=1e-4, atol=1e-4)
    assert [float(memory.state_dict()[f"steps/{name}"]) for name in SHAPES] == [2, 1]


def test_a_rank_that_takes_over_two_memories_has_their_mean_moments_and_all_that_waits():
    memories = [make_memory("adam") for _ in range(2)]
    parameters = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for rank, memory in enumerate(memories):
        for name in SHAPES:
            send(memory, "efsignsgd", rank, name)
    one, two = [filled(memory, parameters) for memory in memories]
    assert one.keys() == blank(memories[0], parameters).keys()
    both = add_up([one, two], memories[0], parameters)
    for name, entry in both.items():
        factor = 1.0 if name.startswith("residual/") else 0.5
        torch.testing.assert_close(entry, (one[name] + two[name]) * factor)
    assert one["steps/bias"] == 1  # what was added up is left as it was
    fresh = make_memory("adam")
    fresh.load_state_dict(both)
    assert fresh.state_dict().keys() == both.keys()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("beta1=1", r"beta1 and beta2 must be in \[0, 1\), got 1.0 and 0.999"),
        ("beta2=-0.1", r"beta1 and beta2 must be in \[0, 1\), got 0.9 and -0.1"),
        ("eps=0", r"eps must be above 0, got 0.0"),
        ("beta=0.9", r"adam: unknown setting 'beta'; did you mean 'beta2'"),
    ],
)
def test_settings_out_of_range_are_named(setting, message):
    with pytest.raises(ConfigError, match=message):
        make_memory(f"adam({setting})")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"velocity/bias": torch.zeros(6)}, "cannot hold 'velocity/bias'"),
        ({"steps/bias": torch.tensor(-1.0)}, "'steps/bias' must be a number of steps, got -1"),
        ({"steps/bias": torch.tensor(float("nan"))}, "'steps/bias' must be a number of steps"),
    ],
)
def test_a_state_of_something_else_is_refused(state, message):
    with pytest.raises(CheckpointError, match=message):
        EfficientAdam().load_state_dict(state)
