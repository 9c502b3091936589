"""Communicators, by their names in `--comm-type`.

To add a communicator without a master: write its module in `exchange/reductions`, then list it in
REDUCTIONS.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from atomo.core.tables import Table

if TYPE_CHECKING:  # only ranks need the classes
    from atomo.exchange.base import Reduction

__all__ = [
    "COMM_TYPES",
    "PARAMETER_SERVER",
    "REDUCTIONS",
    "REPEATING",
    "name_of_stored",
    "settings_of_stored",
    "stored_name",
    "stored_settings",
]

PARAMETER_SERVER: Final = "ParameterServer"  # the only type with a master
# Files keep the earlier name, so that earlier versions can read them, and runs and sweeps of
# earlier versions can continue: a sweep compares the whole text of the settings, and the hash of a
# plan includes this name.
STORED_PARAMETER_SERVER: Final = "Bcast"

REDUCTIONS: Final[Table["type[Reduction[Any, Any]]"]] = Table(
    "atomo.exchange.reductions",
    {
        "Allgather": "allgather:Allgather",
        "Allreduce": "allreduce:Allreduce",
        "PowerSGD": "powersgd:PowerSGD",
        "ACPSGD": "acpsgd:ACPSGD",
        "Chunked": "chunked:Chunked",
    },
)
REPEATING: Final = ("Allgather", "Allreduce")
"""Reductions that repeat the exchange of a gradient without a rank that died during the step."""
COMM_TYPES: Final = (PARAMETER_SERVER, *REDUCTIONS)


def stored_name(comm_type: str) -> str:
    """Returns the name of a type in files, for its canonical name.

    >>> stored_name("ParameterServer"), stored_name("Allgather")
    ('Bcast', 'Allgather')
    """
    return STORED_PARAMETER_SERVER if comm_type == PARAMETER_SERVER else comm_type


def name_of_stored(name: str) -> str:
    """Returns the canonical name of a type, for its name in a file of any version.

    >>> name_of_stored("Bcast"), name_of_stored("ParameterServer")
    ('ParameterServer', 'ParameterServer')
    """
    return PARAMETER_SERVER if name == STORED_PARAMETER_SERVER else name


def stored_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings as files have them."""
    return renamed(settings, stored_name)


def settings_of_stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings in canonical form, for those in a file of any version."""
    return renamed(values, name_of_stored)


def renamed(settings: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    return {
        name: rename(value) if name == "comm_type" else value for name, value in settings.items()
    }
