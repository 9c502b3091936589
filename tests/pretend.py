"""A device that is not there: tensors that say they lie on it, and refuse to meet others.

It finds what would raise on a GPU, on machines without one: a CPU tensor that meets one of the
device's, and a way to numpy without a copy to the host. Everything is computed on the CPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from atomo import devices
from atomo.kernels import backends

DEVICE = torch.device("meta")  # every build of PyTorch knows it; nothing here computes on it
MOVES = {torch.ops.aten.copy_, torch.ops.aten._to_copy}
INDEXING = {torch.ops.aten.index, torch.ops.aten.index_put_, torch.ops.aten.index_put}
"""Operations for which a real device takes the indices from the CPU."""
LOOKS = {
    torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal,
    torch.ops.aten.masked_select, torch.ops.aten.bincount, torch.ops.aten._unique2,
}  # fmt: skip
"""Operations that tell the host something of the device, and wait for it."""
MAKERS = {torch.where, torch.nn.functional.one_hot}
"""Functions that make further tensors on the device of their arguments, which this module does not
see.
"""


HEARERS: list[list[str]] = []
"""Lists that record every wait for the device."""
UNDER_WAY: list[Callable[[], object]] = []
"""Copies to the host that are done once it is waited for."""


def waited(what: str) -> None:
    """Tells of a wait for the device."""
    for heard in HEARERS:
        heard.append(what)


@contextmanager
def waits() -> Iterator[list[str]]:
    """Records the waits for the device inside the context."""
    heard: list[str] = []
    HEARERS.append(heard)
    try:
        yield heard
    finally:
        HEARERS.remove(heard)


class Pretender(Tensor):
    """A tensor on the device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Pretender":
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        target = given.pop("device", DEVICE)
        packet = func.overloadpacket
        if packet in LOOKS or (packet in INDEXING and masks(args[1])):
            waited(packet.__name__)
        if packet is torch.ops.aten.copy_ and not pretends(args[0]):
            return leave(*args, **given)
        if packet not in MOVES:
            check_together(packet, args[:1] if packet in INDEXING else args)
        plain_args, plain = tree_map(plainly, (args, given))
        result = func(*plain_args, **plain)
        if torch.device(target).type != DEVICE.type:
            return result
        if packet is torch.ops.aten.copy_:
            return args[0]
        # What an operation changes in place stays the same tensor.
        known = {id(a.held): a for a in tree_flatten((args, given))[0] if isinstance(a, Pretender)}
        return tree_map(lambda part: known.get(id(part), placed(part)), result)


def masks(indices: Any) -> bool:
    """True if some of the indices are Booleans, of which a device must count the true ones."""
    return any(isinstance(one, Tensor) and one.dtype is torch.bool for one in indices)


def leave(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Copies to the host: at once, or into pinned memory once the device is waited for."""
    held = plainly(source)
    if not non_blocking:
        waited("copy_")
        return to.copy_(held)
    assert is_pinned(to), "a copy without a wait goes to pinned memory"
    to.view(-1).view(torch.uint8).fill_(0x5A)  # nobody may look at it yet
    now = held.clone()
    UNDER_WAY.append(lambda: to.copy_(now))
    return to


def pretends(value: Any) -> bool:
    return isinstance(value, Pretender)


def plainly(value: Any) -> Any:
    return value.held if isinstance(value, Pretender) else value


def placed(value: Any) -> Any:
    return Pretender(value) if isinstance(value, Tensor) and not pretends(value) else value


def check_together(name: Any, args: tuple[Any, ...]) -> None:
    """Raises what a device raises where a tensor of the CPU is among its own."""
    for value in tree_flatten(args)[0]:
        if isinstance(value, Tensor) and not pretends(value) and value.ndim:
            raise RuntimeError(f"{name}: expected all tensors to be on {DEVICE}, found one on cpu")


class Device(TorchFunctionMode):
    """Within it the device is there: tensors can be made on it and moved to it."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is Tensor.numpy and pretends(args[0]):
            raise TypeError(f"can't convert {DEVICE} tensor to numpy: copy it to the CPU first")
        if func is Tensor.to:
            return moved(func, args, given)
        if func is Tensor.__setitem__ and pretends(args[0]) and not isinstance(args[2], Tensor):
            # PyTorch 2.14 makes the number a tensor of the device first, where nothing is stored.
            number = torch.tensor(args[2], dtype=args[0].dtype)
            return func(args[0], args[1], placed(number))
        if func is Tensor.new_tensor and pretends(args[0]):
            waited("new_tensor")
            return placed(torch.tensor(args[1], **({"dtype": args[0].dtype} | given)))
        if func in MAKERS and any(map(pretends, args)):
            check_together(func, args)
            return placed(func(*map(plainly, args)))
        if func is Tensor.cpu:
            if pretends(args[0]):
                waited("cpu")
            return plainly(args[0])
        if func is Tensor.data_ptr:
            return plainly(args[0]).data_ptr()
        if func is Tensor.pin_memory:
            return pinned(args[0].clone())
        if given.pop("pin_memory", False):
            return pinned(func(*args, **given))
        if func is Tensor.tolist:
            if pretends(args[0]):
                waited("tolist")
            return plainly(args[0]).tolist()
        wanted = given.get("device")
        if wanted is not None and torch.device(wanted).type == DEVICE.type:
            if isinstance(generator := given.get("generator"), torch.Generator):
                raise RuntimeError(
                    f"expected a {DEVICE} generator, found one of {generator.device}"
                )
            if not any(pretends(a) for a in tree_flatten(args)[0]):
                if func in (torch.tensor, torch.as_tensor):
                    waited(func.__name__)
                return placed(func(*args, **(given | {"device": "cpu"})))
        return func(*args, **given)


def moved(func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """`Tensor.to` with a device, a dtype, both, or another tensor."""
    value, *rest = args
    targets = [a.device if isinstance(a, Tensor) else a for a in (*rest, given.pop("device", None))]
    devices = [torch.device(a) for a in targets if isinstance(a, torch.device | str)]
    dtypes = [a.dtype for a in rest if isinstance(a, Tensor)]
    dtypes += [a for a in (*rest, given.pop("dtype", None)) if isinstance(a, torch.dtype)]
    there = devices[0].type == DEVICE.type if devices else pretends(value)
    held = plainly(value)
    beside = given.pop("non_blocking", False)
    if there != pretends(value) and not (there and beside and is_pinned(value)):
        waited("to")
    result = func(held, dtypes[0], **given) if dtypes else held
    if there == pretends(value) and result is held:
        return value
    # A move between devices is always a copy.
    result = result.clone() if devices and result is held else result
    return placed(result) if there else result


PINNED: list[Tensor] = []
"""Held for as long as a test lasts, so that nothing else comes to lie where they do."""


def pinned(tensor: Tensor) -> Tensor:
    """Returns a tensor that counts as pinned from now on."""
    PINNED.append(tensor)
    return tensor


def is_pinned(tensor: Tensor) -> bool:
    """True if it is one of those, or a view of one."""
    place = tensor.untyped_storage().data_ptr()
    return any(one.untyped_storage().data_ptr() == place for one in PINNED)


class Event:
    """A place in a stream: what was begun until then is done once it is waited for."""

    def __init__(self, stream: "Stream") -> None:
        self.stream, self._before = stream, [*UNDER_WAY]

    def synchronize(self) -> None:
        waited("synchronize")
        for copy in self._before:
            if copy in UNDER_WAY:
                UNDER_WAY.remove(copy)
                copy()


class Stream:
    """A stream of the device, on which all is done at once but copies to the host."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.follows: list[Stream] = []
        """The streams behind which it was told to be."""

    def record_event(self) -> Event:
        return Event(self)

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def wait_event(self, event: Event) -> None:
        self.follows.append(event.stream)

    def wait_stream(self, other: "Stream") -> None:
        self.follows.append(other)


class Module:
    """The part of `torch.cuda` that deals with streams. Each thread has its own current stream."""

    Stream = Stream

    def __init__(self) -> None:
        self.main = Stream(DEVICE)
        self._here = local()

    def current_stream(self, device: torch.device | None = None) -> Stream:
        return getattr(self._here, "stream", self.main)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self._here.stream = stream
        try:
            yield
        finally:
            self._here.stream = before


@contextmanager
def with_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has the device take Triton's ways, as CUDA does, in Triton's interpreter.

    A launch takes tensors of the device alone: one of the CPU is what Triton refuses there.
    """
    from triton.runtime.interpreter import InterpretedFunction

    launch = InterpretedFunction.run

    def run(self: Any, *args: Any, **given: Any) -> Any:
        for value in tree_flatten((args, given))[0]:
            if isinstance(value, Tensor) and not pretends(value):
                raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        launch(self, *map(plainly, args), **tree_map(plainly, given))

    monkeypatch.setattr(InterpretedFunction, "run", run)
    monkeypatch.setitem(backends.PREFERRED, DEVICE.type, backends.PREFERRED["cuda"])
    backends.module_for.cache_clear()
    try:
        yield
    finally:
        monkeypatch.delitem(backends.PREFERRED, DEVICE.type)
        backends.module_for.cache_clear()


def staged(monkeypatch: pytest.MonkeyPatch) -> Module:
    """Has copies between the device and the host go through pinned memory, as on CUDA."""
    module = Module()
    monkeypatch.setattr(devices, "STAGED", {DEVICE.type})
    monkeypatch.setattr(devices, "module_of", lambda device: module)
    PINNED.clear()
    UNDER_WAY.clear()
    return module
