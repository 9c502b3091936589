"""Inputs and results of the checks before a launch."""

from dataclasses import dataclass
from typing import Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.tags import ClusterTags
from atomo_cluster.ec2.settings.cluster import Cluster

__all__ = ["FAILED", "OK", "UNKNOWN", "CheckContext", "CheckResult", "failed", "ok", "unknown"]

OK: Final = "ok"
FAILED: Final = "failed"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class CheckContext:
    """Inputs of the checks."""

    aws: Aws
    cluster: Cluster
    owned: ClusterTags


@dataclass(frozen=True)
class CheckResult:
    """The result of a check; a failure includes its remedy."""

    outcome: str
    text: str


def ok(text: str) -> CheckResult:
    """Returns a successful result."""
    return CheckResult(OK, text)


def failed(text: str) -> CheckResult:
    """Returns a failure: the launch would fail, or worse."""
    return CheckResult(FAILED, text)


def unknown(text: str) -> CheckResult:
    """Returns an unknown result: AWS did not answer."""
    return CheckResult(UNKNOWN, text)
