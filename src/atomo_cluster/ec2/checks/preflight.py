"""Checks before a launch. Each failure names its remedy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from atomo_cluster.ec2.checks import account, hosts, network, storage
from atomo_cluster.ec2.checks.results import (
    FAILED,
    OK,
    UNKNOWN,
    CheckContext,
    CheckResult,
    failed,
    unknown,
)
from atomo_cluster.errors import CloudError, ConfigError

__all__ = ["Finding", "validate"]

CHECKS: Final[Mapping[str, Callable[[CheckContext], CheckResult]]] = MappingProxyType(
    {
        "credentials": account.credentials,
        "name": account.name,
        "instance types": hosts.types,
        "zone": hosts.zone,
        "image": hosts.image,
        "quota": account.quota,
        "spot price": hosts.price,
        "placement": hosts.placement,
        "subnet": network.subnet,
        "key pair": network.key_pair,
        "security group": network.security_group,
        "shared folder": storage.shared_folder,
    }
)
# Without these it is unknown whether the launch would follow the settings, or work at all.
ESSENTIAL: Final = frozenset({"credentials", "name", "instance types", "zone", "image", "subnet"})


@dataclass(frozen=True)
class Finding:
    """The result of a named check."""

    check: str
    outcome: str
    text: str

    @property
    def passed(self) -> bool:
        """True if a launch may proceed; the result of an essential check must be known."""
        return self.outcome == OK or (self.outcome == UNKNOWN and self.check not in ESSENTIAL)


def validate(site: CheckContext) -> list[Finding]:
    """Runs every check. A result that AWS does not provide is unknown, which is not ok."""
    return [finding(name, check, site) for name, check in CHECKS.items()]


def finding(name: str, check: Callable[[CheckContext], CheckResult], site: CheckContext) -> Finding:
    """Runs one check and turns its errors into results."""
    try:
        verdict = check(site)
    except ConfigError as error:
        verdict = failed(str(error))
    except CloudError as error:
        if error.code.startswith("Invalid"):  # a resource in the settings does not exist
            return Finding(name, FAILED, str(error))
        verdict = unknown(f"AWS does not say: {error}")
    return Finding(name, verdict.outcome, verdict.text)
