"""The ways to average gradients, by the names that `--comm-type` has for them.

To add one without a master: write its module in `communicators`, then list it in REDUCTIONS.
"""

from typing import TYPE_CHECKING, Any, Final

from atomo.tables import Table

if TYPE_CHECKING:  # a job's ranks alone need what averages
    from atomo.communicators.base import Reduction

__all__ = ["COMM_TYPES", "PARAMETER_SERVER", "REDUCTIONS", "REPEATING"]

PARAMETER_SERVER: Final = "Bcast"  # the one with a master, by the name of its way down

REDUCTIONS: Final[Table["type[Reduction[Any, Any]]"]] = Table(
    "atomo.communicators",
    {
        "Allgather": "allgather:Allgather",
        "Allreduce": "allreduce:Allreduce",
        "PowerSGD": "powersgd:PowerSGD",
        "ACPSGD": "acpsgd:ACPSGD",
        "Chunked": "chunked:Chunked",
    },
)
REPEATING: Final = ("Allgather", "Allreduce")
"""Those that exchange a gradient anew, so that a step goes on without a rank that died in it."""
COMM_TYPES: Final = (PARAMETER_SERVER, *REDUCTIONS)
