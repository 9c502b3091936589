"""Terms that settings use: roles, purchase methods, special values."""

from typing import Final

__all__ = [
    "AUTO",
    "BAKED",
    "LATEST",
    "LONGEST_H",
    "MASTER",
    "METHODS",
    "NO",
    "ON_DEMAND",
    "ROLES",
    "SPOT",
    "SSM",
    "WORKER",
    "YES",
    "split_commas",
]

SPOT: Final = "spot"
ON_DEMAND: Final = "on-demand"
METHODS: Final = (SPOT, ON_DEMAND, "reserved")
MASTER: Final = "master"
WORKER: Final = "worker"
ROLES: Final = (MASTER, WORKER)
SSM: Final = "ssm"
LATEST: Final = "latest"
BAKED: Final = "baked"
AUTO, YES, NO = "auto", "yes", "no"  # of aws_end
LONGEST_H: Final = 720.0


def split_commas(text: str) -> tuple[str, ...]:
    """Splits text at commas, without blanks and empty words."""
    return tuple(word for word in (part.strip() for part in text.split(",")) if word)
