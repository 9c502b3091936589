"""Deferred imports: a module is imported on first use of an attribute.

PyTorch takes seconds to import. A command that only reads options and starts processes needs it in
type annotations alone, so the command defers it: `import torch` then returns a placeholder, and the
first access to an attribute imports the module. Other processes are not affected.

Deferring saves time only if no module uses PyTorch during its own import. The modules that these
commands need are written accordingly: `import torch` and `torch.Tensor`, not `from torch import
Tensor`; annotations stay text (`from __future__ import annotations`); no constant needs PyTorch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any, final

__all__ = ["defer"]


@final
class StandIn(ModuleType):
    """A placeholder for a module that is imported when it is first used."""

    def __getattr__(self, name: str) -> Any:
        """Imports the module and returns the attribute."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def defer(name: str) -> None:
    """Defers the import of a module to its first use, unless the module is imported already."""
    sys.modules.setdefault(name, StandIn(name))
