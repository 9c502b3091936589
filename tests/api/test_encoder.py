"""An encoder has the bytes of `encode`, in room of its own, and its memory goes by name."""

import numpy as np
import pytest
import torch
from support.draws import normal

import atomo
from atomo.codecs import CODECS
from atomo.errors import AtomoError, CheckpointError, CodecError, ConfigError
from atomo.memory import NoMemory, Residual
from atomo.wire import FrameBuffer, Header, Kind, pack, pack_bytes
from atomo.wire.buffer import longest_head

every_codec = pytest.mark.parametrize("code", [*CODECS])
HALF = normal(40, 30).half()
STEPS = 3


def layers(step: int) -> dict[str, torch.Tensor]:
    """Returns a gradient: dense, transposed, of other dtypes, a bias, a scalar."""
    return {"weight": normal(40, 30, seed=step), "turned": normal(20, 9, seed=step).T,
             "half": normal(8, 5, seed=step).half(), "double": normal(7, 3, seed=step).double(),
             "bias": normal(40, seed=step), "scale": normal(seed=step)}  # fmt: skip


def address(frame: memoryview) -> int:
    """Returns the address of a frame in memory."""
    return np.frombuffer(frame, np.uint8).ctypes.data


def memories(code: str) -> list[str]:
    """Returns the memories that go with a codec."""
    return [name for name in ("none", "residual") if fits(code, name)]


def fits(code: str, memory: str) -> bool:
    try:
        atomo.Encoder(code, memory=memory)
    except ConfigError:
        return False
    return True


@every_codec
def test_the_bytes_are_those_of_encode_with_the_seed_of_the_step(code):
    for memory in memories(code):
        encoder = atomo.Encoder(code, memory=memory, rank=2, seed=5)
        residuals = atomo.make_memory(memory)
        for step in range(STEPS):
            tensors = layers(step)
            frame = encoder.encode(tensors)
            seed = encoder.seed_of(step)
            assert frame == atomo.encode(tensors.values(), code, seed=seed, memory=residuals)
            for before, after in zip(layers(step).values(), tensors.values(), strict=True):
                assert before.equal(after)
        for old, new in zip(residuals.state_dict().values(), encoder.memory.state_dict().values(),
                            strict=True):  # fmt: skip
            assert old.equal(new)


@every_codec
def test_one_tensor_is_a_frame_of_one_tensor(code):
    encoder = atomo.Encoder(code, memory="none")
    frame = encoder.encode(HALF)
    assert frame == atomo.encode(HALF, code, seed=encoder.seed_of(0))
    assert atomo.decode(frame).dtype is torch.float16


def test_frames_lie_in_the_same_room_and_cannot_be_written_to():
    encoder = atomo.Encoder("sgd", memory="none")
    first = encoder.encode(normal(100))
    copied, before = bytes(first), address(first)
    second = encoder.encode(normal(100, seed=2))
    assert address(second) == before
    assert copied != second
    assert second.readonly
    assert len(encoder.encode(normal(10_000))) > 40_000  # more room
    assert encoder.encode(normal(100, seed=1)) == atomo.encode(normal(100), "sgd", seed=0)


def test_seeds_differ_by_step_and_rank_but_for_draws_that_are_shared():
    seeds = {atomo.Encoder("qsgd", rank=rank).seed_of(step) for rank in range(3) for step in (0, 1)}
    assert len(seeds) == 6
    assert len({atomo.Encoder("randk", rank=rank).seed_of(7) for rank in range(3)}) == 1
    assert atomo.Encoder("randk", seed=1).seed_of(0) != atomo.Encoder("randk").seed_of(0)


def test_a_memory_goes_by_name_in_whatever_order():
    tensors = layers(0)
    plain, turned = atomo.Encoder("topk(ratio=0.1)"), atomo.Encoder("topk(ratio=0.1)")
    for step in range(STEPS):
        tensors = layers(step)
        plain.encode(tensors)
        turned.encode(dict(reversed(tensors.items())) if step % 2 else tensors)
    state, turned_state = plain.state_dict(), turned.state_dict()
    assert state.keys() == turned_state.keys()
    assert all(state[name].equal(turned_state[name]) for name in state)


@pytest.mark.parametrize("code", ["topk(ratio=0.1)", "dgc(ratio=0.1)", "qsgd", "signum"])
def test_who_goes_on_from_a_state_has_never_stopped(code):
    momentum = 0.9 if code.startswith("dgc") else 0.0
    through, before, after = (atomo.Encoder(code, momentum=momentum, rank=1) for _ in range(3))
    for step in range(2):
        through.encode(layers(step))
        before.encode(layers(step))
    after.load_state_dict(before.state_dict())
    assert after.step == 2
    assert after.encode(layers(2)) == through.encode(layers(2))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "has a step as '/step', got None"),
        ({"/step": torch.tensor(-1)}, "a step of 0 or more, got -1"),
        ({"/step": torch.tensor(1.0)}, "has a step as '/step'"),
        ({"/step": torch.tensor(1), "w": torch.tensor([float("nan")])}, "'w' must be a tensor of"),
        ({"/step": torch.tensor(1), "w": torch.tensor([1])}, "'w' must be a tensor of finite"),
    ],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(state, message):
    encoder = atomo.Encoder("topk")
    encoder.encode({"w": normal(30, 2)})
    before = encoder.state_dict()
    with pytest.raises(CheckpointError, match=message):
        encoder.load_state_dict(state)
    assert encoder.state_dict()["w"].equal(before["w"])
    assert encoder.step == 1


def test_a_name_that_is_another_tensors_is_refused():
    encoder, again = atomo.Encoder("topk"), atomo.Encoder("topk")
    encoder.encode({"w": normal(30, 2)})
    again.load_state_dict(encoder.state_dict())
    for candidate in (encoder, again):
        with pytest.raises(CodecError, match=r"'w' is of shape \(2, 30\); .* of shape \(30, 2\)"):
            candidate.encode({"w": normal(2, 30)})
    assert encoder.step == 2  # a step that fails is one as well: ranks stay together
    atomo.Encoder("qsgd", memory="none").encode({"w": normal(2, 30)})


def test_it_says_what_it_is_and_takes_objects_and_names():
    encoder = atomo.Encoder(atomo.codecs.TopK(ratio=0.1), memory=Residual(beta=0.5), rank=3)
    encoder.encode(normal(20))
    text = "Encoder('topk(ratio=0.1)', memory='residual', rank=3, seed=0, step=1)"
    assert repr(encoder) == text
    assert isinstance(atomo.Encoder("qsgd").memory, NoMemory)
    assert isinstance(atomo.Encoder("fp16").memory, Residual)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": "residul"}, "unknown memory 'residul'; did you mean 'residual'"),
        ({"memory": Residual()}, "code randk with memory residual diverges"),
        ({"memory": "residual"}, "code randk with memory residual diverges"),
        ({"momentum": 0.9}, "memory none takes no momentum: leave 0.9 to the optimizer"),
        ({"memory": NoMemory(), "momentum": 0.9}, "momentum belongs to the memory that was given"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        atomo.Encoder("randk", **settings)


def test_encode_refuses_a_memory_that_blows_up_and_tells_one_that_clips_the_norm():
    with pytest.raises(ConfigError, match=r"code svd with memory residual diverges.*give memory"):
        atomo.encode(normal(9, 9), "svd", seed=0, memory=atomo.make_memory("residual"))
    gradient = 100 * normal(50)
    clipping = atomo.make_memory("dgc(clip=1.0)", momentum=0.0)
    sent = atomo.decode(atomo.encode(gradient, "sgd", seed=0, memory=clipping))
    torch.testing.assert_close(sent, gradient / gradient.norm())
    encoder = atomo.Encoder("sgd", memory="dgc(clip=1.0)")
    torch.testing.assert_close(atomo.decode(encoder.encode(gradient)), sent)


def test_names_are_text_and_tensors_are_checked_by_name():
    encoder = atomo.Encoder("sgd")
    with pytest.raises(CodecError, match=r"tensor 'w' is of torch\.int64"):
        encoder.encode({"w": torch.arange(3)})
    with pytest.raises(AtomoError, match=r"1e\+300 is beyond float32"):
        encoder.encode({"w": torch.tensor([1e300], dtype=torch.float64)})


@pytest.mark.parametrize("sizes", [[0], [1], [10, 100_000, 3], [5, 5, 5]])
def test_every_way_to_a_frame_has_the_same_bytes(sizes):
    tensors = [normal(size) for size in sizes]
    header, how = Header(Kind.TENSORS, step=3), atomo.Compression()
    whole = pack(header, tensors, how, b"about").tobytes()
    assert pack_bytes(header, tensors, how, b"about") == whole
    buffer = FrameBuffer()
    fields = [atomo.codecs.Field(torch.float32, (size,)) for size in sizes]
    for _ in range(2):
        buffer.begin(longest_head(b"about", fields))
        for tensor in tensors:
            buffer.add([tensor], how)
        assert buffer.seal(header, b"about") == whole
