"""Imports that exclude their objects from Python's garbage collection.

Importing PyTorch makes some hundred thousand objects. The collector scans them again and again:
during the import, during training, and three times more at exit. Together this takes half as long
as the import itself, for each rank of a job.
"""

import gc
import sys
from importlib import import_module
from types import ModuleType

__all__ = ["import_for_good"]


def import_for_good(name: str) -> ModuleType:
    """Imports a module, and excludes all existing objects from garbage collection.

    A module that was imported before is only returned: the program may already have objects that
    should be collected.
    """
    if name in sys.modules:
        return sys.modules[name]
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
