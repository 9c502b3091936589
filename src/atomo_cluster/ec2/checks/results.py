"""Inputs and results of the checks before a launch."""

from dataclasses import dataclass
from typing import Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.tags import Owned
from atomo_cluster.ec2.settings.cluster import Cluster

__all__ = ["FAILED", "OK", "UNKNOWN", "Site", "Verdict", "failed", "ok", "unknown"]

OK: Final = "ok"
FAILED: Final = "failed"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class Site:
    """Inputs of the checks."""

    aws: Aws
    cluster: Cluster
    owned: Owned


@dataclass(frozen=True)
class Verdict:
    """The result of a check; a failure includes its remedy."""

    outcome: str
    text: str


def ok(text: str) -> Verdict:
    """Returns a successful result."""
    return Verdict(OK, text)


def failed(text: str) -> Verdict:
    """Returns a failure: the launch would fail, or worse."""
    return Verdict(FAILED, text)


def unknown(text: str) -> Verdict:
    """Returns an unknown result: AWS did not answer."""
    return Verdict(UNKNOWN, text)
