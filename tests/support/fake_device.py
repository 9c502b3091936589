"""A fake device: tensors that claim to be on it, and raise an error beside tensors of the CPU.

On machines without a GPU it finds errors that a GPU would raise: a CPU tensor among the device's,
and a conversion to numpy without a copy to the host. All operations run on the CPU.
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

from atomo.core import devices
from atomo.kernels import backends

DEVICE = torch.device("meta")  # every build of PyTorch knows it; nothing here computes on it
MOVES = {torch.ops.aten.copy_, torch.ops.aten._to_copy}
INDEXING = {torch.ops.aten.index, torch.ops.aten.index_put_, torch.ops.aten.index_put}
"""Operations for which a real device takes the indices from the CPU."""
SYNCHRONISING = {
    torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal,
    torch.ops.aten.masked_select, torch.ops.aten.bincount, torch.ops.aten._unique2,
}  # fmt: skip
"""Operations that tell the host something of the device, and wait for it."""
MAKERS = {torch.where, torch.nn.functional.one_hot}
"""Functions that make further tensors on the device of their arguments, which this module does not
see.
"""


RECORDERS: list[list[str]] = []
"""Lists that record every wait for the device."""
PENDING_COPIES: list[Callable[[], object]] = []
"""Copies to the host that a wait for the device completes."""


def record_wait(what: str) -> None:
    """Records a wait for the device."""
    for record in RECORDERS:
        record.append(what)


@contextmanager
def waits() -> Iterator[list[str]]:
    """Records the waits for the device inside the context."""
    record: list[str] = []
    RECORDERS.append(record)
    try:
        yield record
    finally:
        RECORDERS.remove(record)


class DeviceTensor(Tensor):
    """A tensor that claims to be on the device; `held` has its values, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "DeviceTensor":
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
        if packet in SYNCHRONISING or (packet in INDEXING and masks(args[1])):
            record_wait(packet.__name__)
        if packet is torch.ops.aten.copy_ and not is_on_device(args[0]):
            return copy_to_host(*args, **given)
        if packet not in MOVES:
            check_together(packet, args[:1] if packet in INDEXING else args)
        plain_args, plain = tree_map(unwrapped, (args, given))
        result = func(*plain_args, **plain)
        if torch.device(target).type != DEVICE.type:
            return result
        if packet is torch.ops.aten.copy_:
            return args[0]
        # A tensor that the operation changed in place stays the same object.
        known = {
            id(a.held): a for a in tree_flatten((args, given))[0] if isinstance(a, DeviceTensor)
        }
        return tree_map(lambda part: known.get(id(part), placed(part)), result)


def masks(indices: Any) -> bool:
    """True if an index is a Boolean mask: the host must wait until the device has counted it."""
    return any(isinstance(one, Tensor) and one.dtype is torch.bool for one in indices)


def copy_to_host(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Copies to the host: at once, or, into pinned memory, at the next wait for the device."""
    held = unwrapped(source)
    if not non_blocking:
        record_wait("copy_")
        return to.copy_(held)
    assert is_pinned(to), "a copy without a wait goes to pinned memory"
    to.view(-1).view(torch.uint8).fill_(0x5A)  # nothing may read it before the wait
    now = held.clone()
    PENDING_COPIES.append(lambda: to.copy_(now))
    return to


def is_on_device(value: Any) -> bool:
    return isinstance(value, DeviceTensor)


def unwrapped(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def placed(value: Any) -> Any:
    return DeviceTensor(value) if isinstance(value, Tensor) and not is_on_device(value) else value


def check_together(name: Any, args: tuple[Any, ...]) -> None:
    """Raises the error of a device if a tensor of the CPU is among its own."""
    for value in tree_flatten(args)[0]:
        if isinstance(value, Tensor) and not is_on_device(value) and value.ndim:
            raise RuntimeError(f"{name}: expected all tensors to be on {DEVICE}, found one on cpu")


class Device(TorchFunctionMode):
    """The mode in which the device exists: tensors can be made on it and moved to it."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is Tensor.numpy and is_on_device(args[0]):
            raise TypeError(f"can't convert {DEVICE} tensor to numpy: copy it to the CPU first")
        if func is Tensor.to:
            return moved(func, args, given)
        if func is Tensor.__setitem__ and is_on_device(args[0]) and not isinstance(args[2], Tensor):
            # PyTorch 2.14 first makes the number a tensor of the device, which here stores nothing.
            number = torch.tensor(args[2], dtype=args[0].dtype)
            return func(args[0], args[1], placed(number))
        if func is Tensor.new_tensor and is_on_device(args[0]):
            record_wait("new_tensor")
            return placed(torch.tensor(args[1], **({"dtype": args[0].dtype} | given)))
        if func in MAKERS and any(map(is_on_device, args)):
            check_together(func, args)
            return placed(func(*map(unwrapped, args)))
        if func is Tensor.cpu:
            if is_on_device(args[0]):
                record_wait("cpu")
            return unwrapped(args[0])
        if func is Tensor.data_ptr:
            return unwrapped(args[0]).data_ptr()
        if func is Tensor.pin_memory:
            return pinned(args[0].clone())
        if given.pop("pin_memory", False):
            return pinned(func(*args, **given))
        if func is Tensor.tolist:
            if is_on_device(args[0]):
                record_wait("tolist")
            return unwrapped(args[0]).tolist()
        wanted = given.get("device")
        if wanted is not None and torch.device(wanted).type == DEVICE.type:
            if isinstance(generator := given.get("generator"), torch.Generator):
                raise RuntimeError(
                    f"expected a {DEVICE} generator, found one of {generator.device}"
                )
            if not any(is_on_device(a) for a in tree_flatten(args)[0]):
                if func in (torch.tensor, torch.as_tensor):
                    record_wait(func.__name__)
                return placed(func(*args, **(given | {"device": "cpu"})))
        return func(*args, **given)


def moved(func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Does `Tensor.to` with a device, a dtype, both, or another tensor."""
    value, *rest = args
    targets = [a.device if isinstance(a, Tensor) else a for a in (*rest, given.pop("device", None))]
    devices = [torch.device(a) for a in targets if isinstance(a, torch.device | str)]
    dtypes = [a.dtype for a in rest if isinstance(a, Tensor)]
    dtypes += [a for a in (*rest, given.pop("dtype", None)) if isinstance(a, torch.dtype)]
    to_device = devices[0].type == DEVICE.type if devices else is_on_device(value)
    held = unwrapped(value)
    non_blocking = given.pop("non_blocking", False)
    if to_device != is_on_device(value) and not (to_device and non_blocking and is_pinned(value)):
        record_wait("to")
    result = func(held, dtypes[0], **given) if dtypes else held
    if to_device == is_on_device(value) and result is held:
        return value
    # A move between devices is always a copy.
    result = result.clone() if devices and result is held else result
    return placed(result) if to_device else result


PINNED: list[Tensor] = []
"""Pinned tensors, kept until the end of a test so that their addresses are not used again."""


def pinned(tensor: Tensor) -> Tensor:
    """Marks a tensor as pinned, and returns it."""
    PINNED.append(tensor)
    return tensor


def is_pinned(tensor: Tensor) -> bool:
    """True if a tensor is pinned, or a view of a pinned tensor."""
    place = tensor.untyped_storage().data_ptr()
    return any(one.untyped_storage().data_ptr() == place for one in PINNED)


class Event:
    """An event in a stream: a wait for it completes the copies begun before it."""

    def __init__(self, stream: "Stream") -> None:
        self.stream, self._before = stream, [*PENDING_COPIES]

    def synchronize(self) -> None:
        record_wait("synchronize")
        for copy in self._before:
            if copy in PENDING_COPIES:
                PENDING_COPIES.remove(copy)
                copy()


class Stream:
    """A stream of the device. All work is done at once, except copies to pinned memory."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.follows: list[Stream] = []
        """The streams that this stream was told to wait for."""

    def record_event(self) -> Event:
        return Event(self)

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def wait_event(self, event: Event) -> None:
        self.follows.append(event.stream)

    def wait_stream(self, other: "Stream") -> None:
        self.follows.append(other)


class StreamModule:
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
    """Runs Triton's kernels for the device, as for CUDA, in Triton's interpreter.

    A launch takes tensors of the device alone: like Triton it refuses a tensor of the CPU.
    """
    from triton.runtime.interpreter import InterpretedFunction

    launch = InterpretedFunction.run

    def run(self: Any, *args: Any, **given: Any) -> Any:
        for value in tree_flatten((args, given))[0]:
            if isinstance(value, Tensor) and not is_on_device(value):
                raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        launch(self, *map(unwrapped, args), **tree_map(unwrapped, given))

    monkeypatch.setattr(InterpretedFunction, "run", run)
    monkeypatch.setitem(backends.PREFERRED, DEVICE.type, backends.PREFERRED["cuda"])
    backends.module_for.cache_clear()
    try:
        yield
    finally:
        monkeypatch.delitem(backends.PREFERRED, DEVICE.type)
        backends.module_for.cache_clear()


def use_staging(monkeypatch: pytest.MonkeyPatch) -> StreamModule:
    """Makes copies between the device and the host go through pinned memory, as on CUDA."""
    module = StreamModule()
    monkeypatch.setattr(devices, "STAGED", {DEVICE.type})
    monkeypatch.setattr(devices, "module_of", lambda device: module)
    PINNED.clear()
    PENDING_COPIES.clear()
    return module
