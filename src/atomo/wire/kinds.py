"""Kinds of frames: their numbers, their directions and their sections.

The docstring of each kind is a row of the table in docs/wire.md: the direction, then the sections.
`{report}` stands for the number of fields of a report, and `{report_fields}` for their meaning;
`tests/wire/test_document.py` fills both in from the class of reports.
"""

from enum import IntEnum, IntFlag

__all__ = ["Flag", "Kind"]


class Kind(IntEnum):
    """The purpose of a frame."""

    TENSORS = 1
    """stands alone | for each tensor, those of its codec's payload; the description says how to
    decode them"""
    WEIGHTS = 2
    """master to worker | all weights: float32, one dimension, never compressed. The worker computes
    the gradient of the step at these weights"""
    GRADIENT = 3
    """worker to master, or rank to rank; undecoded to other workers if it counted | for each part
    of one bucket, the tensors of its codec's payload"""
    REPORT = 4
    """worker to master, or rank to rank | float64 [{report}]: {report_fields}. The gradient of the
    step is complete"""
    SAVE = 5
    """master to worker | none: the worker answers with STATE"""
    STATE = 6
    """both directions | a worker's state: uint8, one dimension, a safetensors file"""
    STOP = 7
    """master to worker, or rank 0 to rank | none: the run ends"""
    SCALES = 8
    """both directions, or rank to rank, for codecs with agreed scales | float64 [parts]: the scales
    that a gradient proposes; in the answer the largest ones, or none if the proposal was late"""
    PIECE = 9
    """rank to rank, in an all-reduce | for each vector, the tensors of the payload of its wire
    codec; the layout is a hash of the label of the sum"""
    BEGIN = 10
    """master to worker | none: the worker computes the gradient of this step at its current
    weights"""
    UPDATE = 11
    """master to worker | float64 [1, 2 or 1 + workers]: the factor on the learning rate, and,
    if they changed, the shares of the gradients: one for all or one for each; int32 [workers]: the
    counted workers in rank order"""
    SNAPSHOT = 12
    """master to worker | all weights: float32, one dimension; the optimizer: uint8, one dimension,
    a safetensors file. Its step is the number of steps taken"""
    HASH = 13
    """both directions | none: the query; uint8 [8]: xxh3-64 of the weights, big-endian. Its step is
    the number of steps taken"""
    DELTA = 14
    """master to worker | int64 [1]: the base, one step less; then, for each part of one bucket of
    the weights, the tensors of its codec's payload. A lossless codec holds the weights, any other
    codec the difference"""
    RELAY = 15
    """master to worker, in place of WEIGHTS | int32 [2]: the rank that sends the pieces of the
    weights, and the rank that receives them next; 0: no rank"""
    PART = 16
    """master to worker; undecoded to other workers | float32: a piece of the weights; its number
    is in the field of the bucket"""
    CHAIN = 17
    """master to worker | int32 [3]: the rank that sends the master's frames, the rank that receives
    them next, undecoded (0: no rank), and the number of frames"""
    MEMBERS = 18
    """master to worker | int32 [workers of the step]: their ranks, in order; from this step on
    they share the images of each step"""
    BROKEN = 19
    """worker to worker, to the master | none: a worker died, and its frames are not forwarded"""
    RECALL = 20
    """rank 0 to rank, without a master | none: a rank is gone, or another rank reported it, or
    spares join; its step is the epoch that ends"""
    STANDING = 21
    """rank to rank 0 | int64 [1]: the last committed step of this rank; int64 [ranks], float64
    [ranks x {report}]: the ranks of the gradients in it, and their reports, in the same order. Its
    step is the epoch that ends"""
    VERDICT = 22
    """rank 0 to rank | int64 [1]: the last committed step; int64 [ranks], float64 [ranks x
    {report}]: ranks and reports of that step; int64 [ranks]: the members; int64 [1]: the step
    from which on they share the images; int64 [ranks]: the spares that wait for a slot. A spare
    that receives it has a slot. Its step is the epoch that begins"""
    EPOCH = 23
    """rank to rank | none: the later frames of this rank belong to the epoch in the field of the
    step"""
    PACE = 24
    """master to worker | int64 [2]: the first and the last step of a round of local steps; float64
    [workers of the round]: the seconds of a local step of each, in the order of MEMBERS, by which
    they divide its batches"""


class Flag(IntFlag):
    """A modifier of a frame's kind."""

    NONE = 0
    LATE = 1
    """The worker's last gradient was late and was discarded."""
