"""Checks that all codecs share, so that their errors have the same wording."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from atomo.errors import CodecError, ConfigError, FrameFault
from atomo.kernels.rice import NotIndices

__all__ = ["as_codec_error", "check_known", "check_ratio", "require_finite"]


def check_known(codec: str, name: str, value: str, allowed: Iterable[str]) -> None:
    """Raises ConfigError unless a setting has one of the known values."""
    if value not in allowed:
        raise ConfigError(f"{codec}: {name} must be one of {', '.join(allowed)}; got {value!r}")


def check_ratio(codec: str, ratio: float) -> None:
    """Raises ConfigError unless `ratio` is above 0 and at most 1."""
    if not 0 < ratio <= 1:
        raise ConfigError(f"{codec}: ratio must be above 0 and at most 1, got {ratio}")


def require_finite(codec: str, finite: bool) -> None:
    """Raises CodecError unless the encoded gradient is `finite`."""
    if not finite:
        raise CodecError(f"{codec}: the gradient holds NaN or infinity")


@contextmanager
def as_codec_error(codec: str, about: str = "") -> Iterator[None]:
    """Translates a kernel's ValueError, or the error of an inner codec, to a CodecError of `codec`.

    >>> with as_codec_error("topk", "values:"):
    ...     raise ValueError("3 norms")
    Traceback (most recent call last):
    ...
    atomo.errors.CodecError: topk: values: 3 norms
    """
    try:
        yield
    except (ValueError, CodecError) as error:
        fault = error.fault if isinstance(error, CodecError) else FrameFault.PAYLOAD
        fault = FrameFault.INDICES if isinstance(error, NotIndices) else fault
        raise CodecError(" ".join(filter(None, (f"{codec}:", about, str(error)))), fault) from error
