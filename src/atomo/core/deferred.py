"""Modules that are imported when something of them is first used.

PyTorch takes seconds to import. A command that only reads options and starts processes, which
compute, has no use for it but in type annotations, so such a command defers it: from then on
`import torch` gives a stand-in, and the first `torch.anything` that runs imports it. Nothing else
changes, in no other process.

It pays where nothing of the module is used while others are imported. The modules that these
commands need are written that way: `import torch` and `torch.Tensor`, not `from torch import
Tensor`; annotations stay text (`from __future__ import annotations`); no constant is made of it.
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
    """Has a module imported only when something of it is used, unless that has happened already."""
    sys.modules.setdefault(name, StandIn(name))
