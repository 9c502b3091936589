"""Check that ranks which take the same steps have the same weights."""

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from atomo.errors import ReplicasDiffer

__all__ = ["check_replicas"]


def check_replicas(found: Mapping[int, Mapping[str, Tensor]], step: int) -> None:
    """Raises ReplicasDiffer, which names who differs, unless all have the same digest.

    Args:
        found: by rank, with a `digest` of its weights; nothing where somebody else compares.
        step: after which.
    """
    digests = {rank: bytes(state["digest"].tolist()) for rank, state in found.items()}
    usual = max(digests.values(), key=Counter(digests.values()).__getitem__, default=b"")
    odd = [rank for rank, digest in digests.items() if digest != usual]
    if odd:
        first = next(rank for rank, digest in digests.items() if digest == usual)
        raise ReplicasDiffer(
            f"at step {step} rank {odd} has other weights than rank {first}: do all hosts have "
            "the same kind of processor, and the same versions? The same command continues from "
            "the last checkpoint"
        )
