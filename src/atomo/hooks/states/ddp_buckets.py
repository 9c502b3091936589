"""A partition into messages as PyTorch's DistributedDataParallel takes it."""

from typing import Final

from torch import nn

from atomo.core.names import described
from atomo.errors import ConfigError
from atomo.options.grouping import bucket_caps, grouping

__all__ = ["bucket_cap_mb_list"]

FLOAT_BYTES: Final = 4  # what --fusion counts, whatever the parameters are


def bucket_cap_mb_list(model: nn.Module, fusion: str) -> list[float]:
    """Returns a `--fusion`, such as `atomo explain` prints, as bucket sizes for DDP.

        caps = atomo.bucket_cap_mb_list(model, "cuts:3,7,12")
        ddp = DistributedDataParallel(model, bucket_cap_mb_list=caps)

    >>> bucket_cap_mb_list(nn.Linear(1024, 1024), "layer")
    [0.00390625, 4.0]

    DDP, with a hook or without, then has these buckets from its second backward pass on, when it
    knows in which order gradients are there: where that is the reverse of the parameters' order, as
    in most models. With `find_unused_parameters` and no `static_graph` it never divides anew.

    Args:
        model: before DDP wraps it.
        fusion: "layer", "one", "count:8", "bytes:4" (of gradients as float32), "cuts:3,7,12".

    Returns:
        MiB of each bucket, the last parameters' first.

    Raises:
        ConfigError: it cannot be read, must be found where a job starts ("auto"), is of another
            number of parameters, or they are of several dtypes or devices, which DDP keeps apart.
    """
    check_buckets(model, fusion)
    trained = [p for p in model.parameters() if p.requires_grad][::-1]
    kinds = {f"{p.dtype} on {p.device}" for p in trained}
    if len(kinds) > 1:
        raise ConfigError(
            f"the parameters are {', '.join(sorted(kinds))}: DDP gives each of these its own "
            "buckets, and all the same caps"
        )
    cuts = grouping(fusion).cuts([FLOAT_BYTES * p.numel() for p in trained])
    return [*bucket_caps(cuts, [p.element_size() * p.numel() for p in trained])]


def check_buckets(model: object, fusion: object) -> None:
    """Raises ConfigError where the arguments are of other types."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module, got {described(model)}")
    if not isinstance(fusion, str):
        raise ConfigError(f"fusion must be text such as 'bytes:4', got {described(fusion)}")
