"""Files of named tensors, of the kinds that can be read without running what they say."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from atomo.core.safe_read import open_plain
from atomo.errors import ConfigError, DataError

__all__ = ["READ_ERRORS", "read_tensors"]

# As the package says it of bytes, of a dtype that it has no name for, and of absurd sizes.
READ_ERRORS: Final = (
    SafetensorError,
    KeyError,
    ValueError,
    RuntimeError,
    OverflowError,
    MemoryError,
)


def read_tensors(
    path: Path, said: str, of_npz: Callable[[Path], Mapping[str, Tensor]], kinds: str
) -> Mapping[str, Tensor]:
    """Returns all tensors of a file, by their names; nothing is unpickled.

    Args:
        path: its suffix says what it is.
        said: the option that names it, for errors.
        of_npz: reads NumPy's.
        kinds: what it may be, for errors.

    Raises:
        ConfigError: its name ends in neither `.npz` nor `.safetensors`.
        DataError: it cannot be read.
    """
    try:
        match path.suffix.lower():
            case ".npz":
                return of_npz(path)
            case ".safetensors":
                with open_plain(path, linked=True):  # a pipe would be waited for
                    return load_file(path)
    except OSError as error:
        raise DataError(f"{said} {path}: {error.strerror or error}") from error
    except READ_ERRORS as error:
        raise DataError(f"{said} {path} is damaged: {error}") from error
    raise ConfigError(
        f"{said} {path}: must be {kinds}; other kinds are read by unpickling, which runs what a "
        "file says"
    )
