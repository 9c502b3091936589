"""A partition of gradients into buckets, as DistributedDataParallel takes it."""

from typing import Final

from torch import nn

from atomo.core.names import described
from atomo.errors import ConfigError
from atomo.options.grouping import bucket_caps, grouping

__all__ = ["bucket_cap_mb_list"]

FLOAT_BYTES: Final = 4  # --fusion counts float32, whatever the dtype of the parameters


def bucket_cap_mb_list(model: nn.Module, fusion: str) -> list[float]:
    """Returns the bucket sizes for DDP of a value of `--fusion`, as `atomo explain` prints it.

        caps = atomo.bucket_cap_mb_list(model, "cuts:3,7,12")
        ddp = DistributedDataParallel(model, bucket_cap_mb_list=caps)

    >>> bucket_cap_mb_list(nn.Linear(1024, 1024), "layer")
    [0.00390625, 4.0]

    DDP, with a hook or without, has these buckets from its second backward pass on, if gradients
    are ready in the reverse order of the parameters, as in most models. With
    `find_unused_parameters` and without `static_graph`, DDP does not rebuild its buckets.

    Args:
        model: the model, before DDP wraps it.
        fusion: "layer", "one", "count:8", "bytes:4" (MB of gradients as float32), "cuts:3,7,12".

    Returns:
        The size of each bucket in MiB; the bucket of the last parameters is first.

    Raises:
        ConfigError: `fusion` is invalid, must be measured in a job ("auto"), or is for another
            number of parameters; or the parameters have several dtypes or devices, for which DDP
            makes separate buckets.
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
    """Raises ConfigError for arguments of other types."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module, got {described(model)}")
    if not isinstance(fusion, str):
        raise ConfigError(f"fusion must be text such as 'bytes:4', got {described(fusion)}")
