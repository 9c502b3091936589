"""A device that is not there: tensors that say they lie on it, and refuse to meet others.

It finds what would raise on a GPU, on machines without one: a CPU tensor that meets one of the
device's, and a way to numpy without a copy to the host. Everything is computed on the CPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")  # every build of PyTorch knows it; nothing here computes on it
MOVES = {torch.ops.aten.copy_, torch.ops.aten._to_copy}
INDEXING = {torch.ops.aten.index, torch.ops.aten.index_put_, torch.ops.aten.index_put}
"""Where a real device takes the indices from the CPU."""
MAKERS = {torch.where, torch.nn.functional.one_hot}
"""What makes further tensors on the device of its arguments, out of our sight."""


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
        if func is Tensor.new_tensor and pretends(args[0]):
            return placed(torch.tensor(args[1], **({"dtype": args[0].dtype} | given)))
        if func in MAKERS and any(map(pretends, args)):
            check_together(func, args)
            return placed(func(*map(plainly, args)))
        if func is Tensor.cpu:
            return plainly(args[0])
        if func is Tensor.tolist:
            return plainly(args[0]).tolist()
        wanted = given.get("device")
        if wanted is not None and torch.device(wanted).type == DEVICE.type:
            if isinstance(generator := given.get("generator"), torch.Generator):
                raise RuntimeError(
                    f"expected a {DEVICE} generator, found one of {generator.device}"
                )
            if not any(pretends(a) for a in tree_flatten(args)[0]):
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
    result = func(held, dtypes[0], **given) if dtypes else held
    if there == pretends(value) and result is held:
        return value
    # A move between devices is always a copy.
    result = result.clone() if devices and result is held else result
    return placed(result) if there else result
