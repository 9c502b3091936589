"""The fragments of a model: the parameters that are exchanged together."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from atomo.core.names import described
from atomo.errors import ConfigError

__all__ = ["Fragments", "count_fragments", "split_fragments"]

Fragments = int | Sequence[Sequence[str]]
"""The number of fragments, or the patterns of the names of each fragment's parameters."""


def count_fragments(fragments: Fragments) -> int:
    """Returns the number of fragments.

    Raises:
        ConfigError: it is neither a number nor lists of patterns.
    """
    if isinstance(fragments, int) and not isinstance(fragments, bool):
        return fragments
    listed = isinstance(fragments, Sequence) and not isinstance(fragments, str)
    if not listed or not fragments or not all(map(is_patterns, fragments)):  # type: ignore[arg-type]
        raise ConfigError(
            "fragments must be a number, or lists of patterns of parameter names such as "
            f"[['embedding.*', '*norm*'], ['layers.*']], got {described(fragments)}"
        )
    return len(fragments)  # type: ignore[arg-type]  # a sequence


def is_patterns(patterns: object) -> bool:
    """True for a list of at least one pattern."""
    listed = isinstance(patterns, Sequence) and not isinstance(patterns, str)
    return listed and bool(patterns) and all(isinstance(name, str) for name in patterns)  # type: ignore[attr-defined]


def split_fragments(sizes: Mapping[str, int], fragments: Fragments) -> list[list[str]]:
    """Divides parameters into fragments: in their order and of similar size, or by patterns.

    A parameter belongs to the first fragment with a pattern of its name.

    >>> split_fragments({"a": 5, "b": 1, "c": 4, "d": 1}, 2)
    [['a'], ['b', 'c', 'd']]
    >>> split_fragments({"head": 5, "layers.0": 1, "layers.1": 4}, [["head", "*.1"], ["*"]])
    [['head', 'layers.1'], ['layers.0']]

    Args:
        sizes: the number of entries of each parameter.
        fragments: the number of fragments, or the patterns of each.

    Raises:
        ConfigError: there are fewer parameters than fragments, a parameter is in no fragment, or a
            fragment has no parameter.
    """
    return by_size(sizes, fragments) if isinstance(fragments, int) else by_name(sizes, fragments)


def by_name(names: Mapping[str, int], fragments: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns the names of each fragment's parameters."""
    parts: list[list[str]] = [[] for _ in fragments]
    for name in names:
        number = next(numbers(name, fragments), None)
        if number is None:
            raise ConfigError(
                f"fragments: no pattern has parameter {name}: add ['*'] as the last fragment"
            )
        parts[number].append(name)
    for patterns, part in zip(fragments, parts, strict=True):
        if not part:
            raise ConfigError(f"fragments: no parameter is left for {[*patterns]}")
    return parts


def numbers(name: str, fragments: Sequence[Sequence[str]]) -> Iterator[int]:
    """Yields the numbers of the fragments with a pattern of this name."""
    for number, patterns in enumerate(fragments):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            yield number


def by_size(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Divides parameters, in their order, into fragments of similar size."""
    names = [*sizes]
    if count > len(names):
        raise ConfigError(
            f"fragments={count} is above the number of parameters that train, {len(names)}"
        )
    fragments: list[list[str]] = []
    rest = sum(sizes.values())
    while count > 1:
        length = prefix([sizes[name] for name in names[: len(names) - count + 1]], rest / count)
        fragment, names = names[:length], names[length:]
        fragments.append(fragment)
        rest, count = rest - sum(sizes[name] for name in fragment), count - 1
    return [*fragments, names]


def prefix(sizes: Sequence[int], goal: float) -> int:
    """Returns how many of the first sizes have a sum nearest to a goal: 1 at least."""
    best, total = 1, 0
    distance = abs(sizes[0] - goal)
    for number, size in enumerate(sizes, 1):
        total += size
        if abs(total - goal) < distance:
            best, distance = number, abs(total - goal)
    return best
