"""What a check before the launch looks at, and what it says."""

from dataclasses import dataclass
from typing import Final

from atomo_cluster.ec2.aws import Aws
from atomo_cluster.ec2.config import Cluster
from atomo_cluster.ec2.tags import Owned

__all__ = ["FAILED", "OK", "UNKNOWN", "Site", "Verdict", "failed", "ok", "unknown"]

OK: Final = "ok"
FAILED: Final = "failed"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class Site:
    """What the checks look at."""

    aws: Aws
    cluster: Cluster
    owned: Owned


@dataclass(frozen=True)
class Verdict:
    """What a check found; where it failed, also what to do."""

    outcome: str
    text: str


def ok(text: str) -> Verdict:
    """It is as it should be."""
    return Verdict(OK, text)


def failed(text: str) -> Verdict:
    """The launch would fail, or worse."""
    return Verdict(FAILED, text)


def unknown(text: str) -> Verdict:
    """AWS did not say."""
    return Verdict(UNKNOWN, text)
