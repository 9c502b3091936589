"""Files of named tensors, in formats that can be read without running code."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from atomo.core.safe_read import open_plain
from atomo.errors import ConfigError, DataError

__all__ = ["READ_ERRORS", "read_tensors"]

# The errors of the package for damaged bytes, unknown dtypes, and absurd sizes.
READ_ERRORS: Final = (
    SafetensorError,
    KeyError,
    ValueError,
    RuntimeError,
    OverflowError,
    MemoryError,
)


def read_tensors(
    path: Path, option: str, of_npz: Callable[[Path], Mapping[str, Tensor]], kinds: str
) -> Mapping[str, Tensor]:
    """Returns all tensors of a file, by their names; nothing is unpickled.

    Args:
        path: the suffix gives the format.
        option: the option that names it, for errors.
        of_npz: reads NumPy's.
        kinds: the allowed formats, for errors.

    Raises:
        ConfigError: its name ends in neither `.npz` nor `.safetensors`.
        DataError: the file cannot be read.
    """
    try:
        match path.suffix.lower():
            case ".npz":
                return of_npz(path)
            case ".safetensors":
                with open_plain(path, linked=True):  # a pipe would be waited for
                    return load_file(path)
    except OSError as error:
        raise DataError(f"{option} {path}: {error.strerror or error}") from error
    except READ_ERRORS as error:
        raise DataError(f"{option} {path} is damaged: {error}") from error
    raise ConfigError(
        f"{option} {path}: must be {kinds}; other kinds are read by unpickling, which runs code "
        "of the file"
    )
