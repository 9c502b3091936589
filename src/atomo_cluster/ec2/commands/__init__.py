"""Command modules: HELP, `arguments(parser)` and `run(run) -> exit code` each.

planning < hosts < jobs < clusters
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Final

__all__ = ["module_of"]

FOLDERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "planning": ("init", "iam", "cheapest", "plan", "validate", "cost"),
        "hosts": (
            "run_command",
            "kill_python",
            "kill_all_python",
            "list_idle_instances",
            "setup_nfs",
            "bootstrap",
            "fetch",
            "upload",
            "ssh",
            "bake",
            "delete_images",
        ),
        "jobs": ("train", "jobs", "logs", "attach", "stop", "supervise"),
        "clusters": (
            "launch",
            "get_hosts",
            "status",
            "extend",
            "resize",
            "stop_hosts",
            "start_hosts",
            "list_running_instances",
            "clean_launch_and_run",
            "shutdown",
        ),
    }
)


def module_of(command: str) -> ModuleType:
    """Imports the module of a command."""
    folder = next(folder for folder, names in FOLDERS.items() if command in names)
    return import_module(f"{__name__}.{folder}.{command}")
