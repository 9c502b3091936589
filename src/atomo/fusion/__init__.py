"""Parameters to buckets and weights to one flat tensor."""

from atomo.fusion.buckets import Bucket, Part, Slot, plan
from atomo.fusion.embeddings import apart
from atomo.fusion.gradients import Gradients
from atomo.fusion.weights import flatten, named_slices, shapes

__all__ = [
    "Bucket",
    "Gradients",
    "Part",
    "Slot",
    "apart",
    "flatten",
    "named_slices",
    "plan",
    "shapes",
]
