"""The partitions of `--fusion` that are found from costs, by name.

`auto` is the best partition of all (`partition.py`). `mergecomp` is MergeComp (Wang, Wu and Ng,
"MergeComp: A Compression Scheduler for Scalable Communication-Efficient Distributed Training",
2021) as its authors published it: two messages. A binary search finds the cut between them; each
iteration compares the step times on both sides of the middle. MergeComp times real steps, which
change the weights; here each step time is predicted from the measured costs that `auto` uses too.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from atomo.fusion.flow import Flow
from atomo.fusion.partition import best_partition

__all__ = ["SEARCHES", "merged_in_two", "within"]


def merged_in_two(flow: Flow) -> tuple[int, ...]:
    """Computes the cuts of MergeComp; one message of a single tensor."""
    tensors = len(flow.each)
    if tensors < 2:
        return (tensors,)
    looked: dict[int, float] = {}
    start, end = 1, tensors - 1
    while start < end - 1:
        middle = (start + end) // 2
        looked |= {cut: flow.done((cut, tensors)) for cut in (middle, middle + 1)}
        if looked[middle] > looked[middle + 1]:
            start = middle + 1
        else:
            end = middle
    return (min(looked, key=looked.__getitem__, default=tensors // 2), tensors)


Search = Callable[[Flow], tuple[int, ...]]
SEARCHES: Final[Mapping[str, Search]] = MappingProxyType(
    {"auto": best_partition, "mergecomp": merged_in_two}
)
"""By their names in `--fusion`: from costs to cuts."""


def within(cuts: tuple[int, ...], sizes: tuple[int, ...], max_bytes: int) -> tuple[int, ...]:
    """Adds cuts to groups with more than `max_bytes` of the quantity that `sizes` counts."""
    stops: list[int] = []
    for start, stop in pairwise((0, *cuts)):
        filled = 0
        for tensor in range(start, stop):
            if filled and filled + sizes[tensor] > max_bytes:
                stops.append(tensor)
                filled = 0
            filled += sizes[tensor]
        stops.append(stop)
    return tuple(stops)
