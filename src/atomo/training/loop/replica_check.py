"""Check that all replicas have the same weights."""

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from atomo.errors import ReplicasDiffer

__all__ = ["check_replicas"]


def check_replicas(states: Mapping[int, Mapping[str, Tensor]], step: int) -> None:
    """Raises ReplicasDiffer, which names the ranks that differ, unless all digests are equal.

    Args:
        states: by rank, each with a `digest` of the weights; empty on ranks that do not compare.
        step: the last finished step.
    """
    digests = {rank: bytes(state["digest"].tolist()) for rank, state in states.items()}
    usual = max(digests.values(), key=Counter(digests.values()).__getitem__, default=b"")
    odd = [rank for rank, digest in digests.items() if digest != usual]
    if odd:
        first = next(rank for rank, digest in digests.items() if digest == usual)
        raise ReplicasDiffer(
            f"at step {step} rank {odd} has other weights than rank {first}: do all hosts have "
            "the same kind of processor, and the same versions? The same command continues from "
            "the last checkpoint"
        )
