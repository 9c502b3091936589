"""Division of a model's parameters into buckets, one message each.

Parameters are taken in reverse order, which is about the order in which a backward pass finishes
their gradients, so that the first bucket can travel while the rest is still computed. Which of them
share a bucket `grouping` decides. Within a bucket, `codecs.dense_fallback` selects the parameters
that are sent dense.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, groupby, pairwise
from typing import Any, Final, final

import xxhash
from torch import Size

from atomo.codecs import Codec, Field, Granularity
from atomo.codecs.by_name import NONE, ByName
from atomo.codecs.dense_fallback import DENSE, goes_dense
from atomo.codecs.shared_scale import SharedScaleCodec, shared_scale_codec
from atomo.errors import ConfigError
from atomo.options.grouping import Grouping
from atomo.wire import Sections

__all__ = ["Bucket", "Part", "Slot", "divide", "placed", "plan", "subset"]

FLOAT_BYTES: Final = 4
MOST_SUBSETS: Final = 1024  # in the cache; a model of many experts uses other subsets at each step
MOST: Final = 2**31 - 1  # entries of a bucket: kernels and payloads count in 31 bits


@final
@dataclass(frozen=True)
class Slot:
    """The position of one parameter in the flat gradient of its bucket."""

    name: str
    shape: Size
    start: int  # entries

    @property
    def stop(self) -> int:
        """The index after the last entry."""
        return self.start + self.shape.numel()


@final
@dataclass(frozen=True)
class Part:
    """The input of one `encode`: one parameter in its shape, or several, flattened and
    concatenated.
    """

    codec: Codec[Any]
    shape: Size
    slots: tuple[Slot, ...]

    @cached_property
    def start(self) -> int:
        """The first entry in the flat gradient of the bucket."""
        return self.slots[0].start

    @cached_property
    def stop(self) -> int:
        """The index after the last entry."""
        return self.slots[-1].stop

    @cached_property
    def place(self) -> range:
        """The entries from `start` to `stop`."""
        return range(self.start, self.stop)

    @property
    def label(self) -> str:
        """The first parameter, and the number of others."""
        others = len(self.slots) - 1
        return self.slots[0].name + (f" and {others} more" if others else "")

    @cached_property
    def adjacent(self) -> bool:
        """True if its parameters follow each other without gaps, as in every planned bucket."""
        return all(slot.stop == after.start for slot, after in pairwise(self.slots))

    @cached_property
    def scale_codec(self) -> SharedScaleCodec | None:
        """The codec, if it uses one scale for all workers."""
        return shared_scale_codec(self.codec)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The bounds of the payload tensors of this part."""
        return self.codec.fields(self.shape)


@final
@dataclass(frozen=True)
class Bucket:
    """Parameters with their gradients in one message."""

    number: int
    offset: int
    """Its first entry in the flat gradient of the whole model, where buckets follow each other."""
    parts: tuple[Part, ...]

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """All parameters, in the order in which they lie."""
        return tuple(slot for part in self.parts for slot in part.slots)

    @cached_property
    def size(self) -> int:
        """Entries of the flat gradient."""
        return max(slot.stop for slot in self.slots)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first entry of each parameter, in the order of `slots`."""
        return tuple(slot.start for slot in self.slots)

    @cached_property
    def stops(self) -> tuple[int, ...]:
        """The index after the last entry of each parameter, in the same order."""
        return tuple(slot.stop for slot in self.slots)

    @cached_property
    def agreeing(self) -> tuple[Part, ...]:
        """Parts with a scale on which the workers must agree before they encode."""
        return tuple(part for part in self.parts if part.scale_codec)

    @cached_property
    def by_codec(self) -> dict[Codec[Any], list[int]]:
        """The numbers of the parts without gaps between their parameters, by codec, in the order in
        which they lie.
        """
        numbers: dict[Codec[Any], list[int]] = {}
        for number in sorted(range(len(self.parts)), key=lambda n: self.parts[n].start):
            if self.parts[number].adjacent:
                numbers.setdefault(self.parts[number].codec, []).append(number)
        return numbers

    @cached_property
    def finished(self) -> tuple[Part, ...]:
        """Parts with a codec that turns the mean into another aggregate."""
        parts = self.parts
        return tuple(part for part in parts if type(part.codec).finish is not Codec.finish)

    @cached_property
    def amplifies_noise(self) -> bool:
        """True if random errors lengthen the decoded gradient of any part."""
        return any(part.codec.amplifies_noise for part in self.parts)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The bounds of the tensors in a message of this bucket."""
        return tuple(field for part in self.parts for field in part.fields)

    @cached_property
    def sections(self) -> Sections:
        """The same bounds, for reading many messages in one call."""
        return Sections(self.fields)

    @cached_property
    def layout_hash(self) -> int:
        """Hash of codecs, names and shapes, which identifies frames of this bucket."""
        text = ";".join(
            f"{part.codec}|" + ",".join(f"{slot.name}{tuple(slot.shape)}" for slot in part.slots)
            for part in self.parts
        )
        return xxhash.xxh32_intdigest(text.encode())


def plan(
    parameters: Sequence[tuple[str, Size]],
    codec: Codec[Any],
    grouping: Grouping,
    by_name: ByName = NONE,
) -> tuple[Bucket, ...]:
    """Divides `parameters` (in forward order) into buckets, in the order of the backward pass.

    The place of a parameter depends on the grouping alone, and not on codecs.

    Args:
        parameters: names and shapes.
        codec: the codec of all parameters that are not in `by_name`.
        grouping: the rule that assigns parameters to buckets.
        by_name: codecs of single parameters.

    Raises:
        ConfigError: a bucket has more than `MOST` entries, all of one parameter or of several.
    """
    backward = parameters[::-1]
    cuts = grouping.cuts([FLOAT_BYTES * shape.numel() for _, shape in backward])
    buckets: list[Bucket] = []
    for start, stop in pairwise((0, *cuts)):
        offset = buckets[-1].offset + buckets[-1].size if buckets else 0
        check_size(backward[start:stop])
        parts = divide(backward[start:stop], codec, by_name)
        buckets.append(Bucket(len(buckets), offset, parts))
    return tuple(buckets)


def check_size(group: Sequence[tuple[str, Size]]) -> None:
    """Raises ConfigError for a group of more entries than a bucket takes."""
    entries = sum(shape.numel() for _, shape in group)
    name, shape = max(group, key=lambda parameter: parameter[1].numel(), default=("", Size()))
    if entries > MOST and shape.numel() > MOST:
        raise ConfigError(
            f"{name} {tuple(shape)} has {shape.numel()} entries, and a message at most {MOST}: "
            "make the layer smaller, or of several parameters"
        )
    if entries > MOST:
        raise ConfigError(
            f"{len(group)} parameters of {entries} entries share a message of at most {MOST}: "
            "give --fusion bytes:4 or a lower --fusion-mb"
        )


def divide(
    group: Sequence[tuple[str, Size]], codec: Codec[Any], by_name: ByName = NONE
) -> tuple[Part, ...]:
    """Divides a bucket into parts: first the compressed parameters, then the dense parameters."""
    return parts_of(group, lambda name: by_name.codec(name, codec))


def placed(bucket: Bucket, names: Sequence[str]) -> Bucket:
    """Returns a bucket with the same parts, whose parameters lie in another order.

    The parameters of a part may then have gaps between them. Frames of both buckets are the same.

    Args:
        bucket: the bucket.
        names: all its parameters, in the order in which they lie.
    """
    sizes = {slot.name: slot.shape.numel() for slot in bucket.slots}
    ends = accumulate(sizes[name] for name in names)
    starts = {name: end - sizes[name] for name, end in zip(names, ends, strict=True)}
    parts = [
        replace(part, slots=tuple(replace(slot, start=starts[slot.name]) for slot in part.slots))
        for part in bucket.parts
    ]
    return replace(bucket, parts=tuple(parts))


def subset(bucket: Bucket, marked: tuple[bool, ...]) -> Bucket:
    """Returns the bucket of some of a bucket's parameters; the same object where all are marked.

    Args:
        bucket: of all of them.
        marked: True for each parameter that stays, in the order in which they lie.
    """
    # Not by the cache, which has the first of equal buckets.
    return bucket if all(marked) else true_subset(bucket, marked)


@lru_cache(MOST_SUBSETS)
def true_subset(bucket: Bucket, marked: tuple[bool, ...]) -> Bucket:
    """Returns the bucket of some of a bucket's parameters, but not of all."""
    codecs = {slot.name: part.codec for part in bucket.parts for slot in part.slots}
    chosen = [(s.name, s.shape) for s, stays in zip(bucket.slots, marked, strict=True) if stays]
    return Bucket(bucket.number, 0, parts_of(chosen, codecs.__getitem__))


def parts_of(
    group: Sequence[tuple[str, Size]], codec_of: Callable[[str], Codec[Any]]
) -> tuple[Part, ...]:
    """Returns the parts of one bucket, in which `codec_of` names the codec of a parameter."""
    coded = [(name, shape) for name, shape in group if not goes_dense(shape)]
    dense = [(name, shape) for name, shape in group if goes_dense(shape)]
    parts: list[Part] = []
    for own, run in (*runs(coded, codec_of), *([(DENSE, dense)] if dense else [])):
        parts.append(part(run, own, parts[-1].stop if parts else 0))
    return tuple(parts)


def runs(
    coded: Sequence[tuple[str, Size]], codec_of: Callable[[str], Codec[Any]]
) -> Iterator[tuple[Codec[Any], list[tuple[str, Size]]]]:
    """Groups neighbours with one codec into inputs of `encode`."""
    for own, neighbours in groupby(coded, lambda entry: codec_of(entry[0])):
        if own.granularity is Granularity.PARAMETER:
            yield from ((own, [parameter]) for parameter in neighbours)
        else:
            yield own, [*neighbours]


def part(run: Sequence[tuple[str, Size]], codec: Codec[Any], start: int) -> Part:
    """Builds the part that begins at entry `start`."""
    slots: list[Slot] = []
    for name, shape in run:
        slots.append(Slot(name, shape, slots[-1].stop if slots else start))
    whole = codec.granularity is Granularity.PARAMETER
    return Part(codec, run[0][1] if whole else Size([slots[-1].stop - start]), tuple(slots))
