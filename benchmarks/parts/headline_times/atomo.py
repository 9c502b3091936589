"""The published `svd` and `qsgd` of ATOMO, on the CPU: one message for each parameter.

Its files are from a time in which `async` was no keyword of Python; as they are loaded, that
argument gets the name that PyTorch has for it now. Nothing else is changed. `qsgd` runs without
buckets, since its buckets ask numpy for a number of sections that is not whole.
"""

import pickle
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

__all__ = ["ATOMO_CODES", "AtomoEncoder"]

ATOMO_CODES: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "published svd": ("svd", "SVD", {"rank": 3, "random_sample": True}),
    "published qsgd": ("qsgd", "QSGD", {"bucket_size": 0, "quantization_level": 4}),
}
"""The published scripts' settings: the file, the class and its arguments."""
PACKAGE: Final = "atomo_published_codings"


class AtomoEncoder:
    """The encoder of a worker of ATOMO's published code."""

    def __init__(self, folder: Path, method: str) -> None:
        """Loads the published file.

        Args:
            folder: the root of ATOMO's repository.
            method: of `ATOMO_CODES`.
        """
        file, class_name, arguments = ATOMO_CODES[method]
        package = types.ModuleType(PACKAGE)
        package.__path__ = []
        sys.modules[PACKAGE] = package
        for name in ("coding", "utils", file):
            module = types.ModuleType(f"{PACKAGE}.{name}")
            module.__package__ = PACKAGE
            sys.modules[module.__name__] = module
            source = (folder / "src" / "codings" / f"{name}.py").read_text()
            exec(source.replace("async=True", "non_blocking=True"), module.__dict__)
        self._coder: Any = getattr(module, class_name)(**arguments)

    def encode(self, gradient: Mapping[str, torch.Tensor]) -> list[bytearray]:
        """Returns the messages of a gradient, as the published worker sends them."""
        arrays = (tensor.numpy().copy() for tensor in gradient.values())
        return [bytearray(pickle.dumps(self._coder.encode(array))) for array in arrays]
