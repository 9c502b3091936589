"""Gradients in half precision are averaged without a float32 copy of them.

Operations are watched on the CPU, and on a device that is pretended, with the kernels of CUDA.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hooks.gradient_layouts import PARAMETERS, apart, padded, row_of
from support import backends
from support.draws import normal
from support.fake_device import Device, DeviceTensor, placed, use_staging, with_triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from atomo.exchange.collectives.direct import Direct
from atomo.hooks.adapter.averager import Averager
from atomo.hooks.adapter.chunks import Chunk, flat_gradient
from atomo.hooks.options.hook_config import HookConfig, make_exchange
from atomo.transports import network

assert backends.TRITON  # which has Triton interpret
SIZE = sum(shape.numel() for _, shape in PARAMETERS)
LAYOUTS: dict[str, Callable[[Chunk], Chunk]] = {
    "ddp": lambda chunk: chunk,
    "wrap_optimizer": apart,
    "fsdp": padded,
}
READING = ["topk(ratio=0.1)", "efsignsgd", "onebit", "dgc(ratio=0.1)", "terngrad(scale=shared)"]
OTHERS = ["svd(rank=2)", "sgd"]
PAIRS = [
    *((code, "wrap_optimizer") for code in READING),
    *(("efsignsgd", lay) for lay in ("ddp", "fsdp")),
]
OTHER_PAIRS = [("svd(rank=2)", "ddp"), ("sgd", "wrap_optimizer")]
ON_THE_CPU = [("topk(ratio=0.1)", "wrap_optimizer"), ("qsgd", "ddp"), ("sgd", "wrap_optimizer")]
USUAL = [("topk(ratio=0.1)", "wrap_optimizer"), ("efsignsgd", "ddp"), ("sgd", "wrap_optimizer")]


def chosen(pairs: list[tuple[str, str]]) -> list[Any]:
    """Returns all pairs as parameters of a test; most are slow."""
    return [pytest.param(*one, marks=[] if one in USUAL else pytest.mark.slow) for one in pairs]


class Widenings(TorchDispatchMode):
    """Records float32 tensors of the size of most of a gradient in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []
        """Operations that made a wide tensor in new memory."""
        self.filled: list[str] = []
        """Operations that wrote a wide tensor into existing memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = [one for one in tree_flatten(args)[0] if isinstance(one, Tensor)]
        halves = sum(one.numel() for one in given if one.dtype.itemsize == 2)
        if 2 * halves < SIZE:
            return found
        name = func.overloadpacket.__name__
        if name in ("copy_", "_foreach_copy_"):
            wide = sum(one.numel() for one in given if one.dtype == torch.float32)
            self.filled += [name] * (2 * wide >= SIZE and given[0].dtype == torch.float32)
        elif not name.strip("_").endswith("norm") and not name.endswith("_"):
            self.made += [name for one in tree_flatten(found)[0] if is_wide(one)]
        return found


def is_wide(one: Any) -> bool:
    """True if the argument is a float32 tensor of the size of most of a gradient."""
    return isinstance(one, Tensor) and one.dtype == torch.float32 and 2 * one.numel() >= SIZE


def averager_of(code: str, memory: str = "auto") -> Averager:
    """Returns the averager of a group of one rank. The test runs the stages itself, to
    watch them.
    """
    (transport,) = network(1)
    parameters = {name: torch.empty(shape) for name, shape in PARAMETERS}
    exchange = make_exchange(HookConfig(code, memory), Direct(transport, 60.0), parameters)
    return exchange._averager


def average(averager: Averager, chunk: Chunk) -> Widenings:
    """Runs one step of an averager, and records its tensors."""
    with Widenings() as seen:
        averager.prepare(chunk, True)
        sent = averager.encode([chunk], lambda work: work())
        averager.decode(averager.exchange(sent), True)
    return seen


def steps(averager: Averager, lay: str, dtype: torch.dtype, put: Any) -> tuple[Any, Widenings]:
    """Returns the gradients after two steps, and the tensors seen in the second, when all buffers
    exist.
    """
    for step in (1, 2):
        chunk = moved(LAYOUTS[lay](row_of(dtype, seed=step)), put)
        seen = average(averager, chunk)
    left = [one.held if isinstance(one, DeviceTensor) else one for one in chunk.gradients.values()]
    return left, seen


def moved(chunk: Chunk, put: Any) -> Chunk:
    """Returns a copy of a chunk on another device, in the same layout."""
    whole = None if chunk.whole is None else put(chunk.whole)
    gradients = {}
    for name, one in chunk.gradients.items():
        start = one.storage_offset()
        view = None if whole is None else whole[start : start + one.numel()].view(one.shape)
        gradients[name] = put(one) if view is None else view
    return Chunk(chunk.number, gradients, whole)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_staging(monkeypatch)
    with with_triton(monkeypatch), Device():
        yield


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Records the dtype of buckets that are passed to the codec; the test cannot watch inside a
    fused kernel.
    """
    found = []

    def noted(*args: Any) -> tuple[Tensor, list[int]]:
        given = flat_gradient(*args)
        found.append(given[0].dtype)
        return given

    monkeypatch.setattr("atomo.hooks.adapter.averager.flat_gradient", noted)
    return found


@pytest.mark.slow(cases=("topk(ratio=0.1)-wrap_optimizer]",))
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("code", "lay"), chosen(PAIRS))
def test_kernels_of_a_device_read_it_as_it_is(code, lay, encoded):
    found, seen = steps(averager_of(code), lay, torch.bfloat16, placed)
    assert seen.made == seen.filled == []
    assert encoded == [torch.bfloat16, torch.bfloat16]
    expected, _ = steps(averager_of(code), lay, torch.bfloat16, torch.clone)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("code", "lay"), chosen(OTHER_PAIRS))
def test_what_has_no_such_kernel_gets_it_in_the_room_of_the_mean(code, lay):
    _, seen = steps(averager_of(code), lay, torch.float16, placed)
    assert seen.made == []
    assert len(seen.filled) <= len(PARAMETERS)


@pytest.mark.parametrize(("code", "lay"), chosen(ON_THE_CPU))
def test_on_the_cpu_it_is_widened_once_into_the_room_of_the_mean(code, lay):
    found, seen = steps(averager_of(code), lay, torch.bfloat16, torch.clone)
    assert seen.made == []
    assert len(seen.filled) <= len(PARAMETERS)
    wide, _ = steps(averager_of(code), lay, torch.float32, rounded)
    for one, other in zip(found, wide, strict=True):
        assert one.equal(other.bfloat16())


def rounded(one: Tensor) -> Tensor:
    """Returns a tensor rounded to bfloat16, as float32."""
    return one.bfloat16().float()


def test_the_norm_of_the_whole_is_taken_without_a_copy():
    averager = averager_of("dgc(ratio=0.1)", "dgc(clip=0.5)")
    _, seen = steps(averager, "wrap_optimizer", torch.bfloat16, torch.clone)
    assert seen.made == []


def test_the_watcher_sees_a_copy():
    given = normal(SIZE).bfloat16()
    with Widenings() as seen:
        given.float()
        torch.empty(SIZE).copy_(given)
        torch.cat([given, normal(3)])
    assert seen.made == ["_to_copy", "cat"]
    assert seen.filled == ["copy_"]
