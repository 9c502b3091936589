"""Python's garbage collector, told that what is imported stays.

Importing PyTorch makes some hundred thousand objects. The collector looks through them again and
again while they are made, during training whenever it has made a few objects of its own, and
three times more at exit: half as long again as the import itself, for each rank of a job.
"""

import gc
import sys
from importlib import import_module
from types import ModuleType

__all__ = ["import_for_good"]


def import_for_good(name: str) -> ModuleType:
    """Imports a module and what it needs, and has the collector leave alone all there is by then.

    A module that was imported before is returned as it is: whoever imported it may have objects
    that should be collected.
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
