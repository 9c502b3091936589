"""Checks of the account: identity, cluster name and quotas."""

import re
from collections.abc import Iterable
from typing import Final

from atomo_cluster.ec2.aws.identity import owner_of
from atomo_cluster.ec2.aws.inventory import instances, namesakes, namesakes_text
from atomo_cluster.ec2.checks.results import OK, CheckContext, CheckResult, failed, ok, unknown
from atomo_cluster.ec2.places.instance_types import instance_types
from atomo_cluster.ec2.settings.terms import MASTER, ROLES, WORKER
from atomo_cluster.errors import CloudError

__all__ = ["credentials", "name", "quota"]

TYPE: Final = re.compile(r"([a-z]+)(\d*)")
SPOT: Final = re.compile(r"All (.+) Spot Instance Requests")
ON_DEMAND: Final = re.compile(r"Running On-Demand (.+) instances")


def credentials(site: CheckContext) -> CheckResult:
    """Checks the credentials and reports the identity, of which the owner must be."""
    try:
        identity = site.aws.call("sts.get_caller_identity")
    except CloudError as error:
        return failed(str(error))
    if not site.cluster.owner and (owner := owner_of(identity["Arn"])) != site.owned.owner:
        return failed(
            f"AWS knows you as {owner!r}, and did not say so before: the ledger of this machine "
            f"is of {site.owned.owner!r}; run the command again"
        )
    return ok(f"{identity['Arn']}; the tag {site.owned.owner!r} marks what is yours")


def name(site: CheckContext) -> CheckResult:
    """Fails if a cluster of this name runs under another identity."""
    hosts_of_owner = namesakes(site.aws, site.owned)
    if not hosts_of_owner:
        return ok(f"no cluster of another owner is called {site.owned.cluster}")
    text = namesakes_text(site.owned, hosts_of_owner)
    if site.cluster.owner:  # a set owner shows that the user knows of the other clusters
        return ok(text)
    return failed(
        f"{text}. If it is yours, say --owner {min(hosts_of_owner)}; else choose another name, or "
        f"say --owner {site.owned.owner} to have one beside it"
    )


def quota(site: CheckContext) -> CheckResult:
    """Checks the account's quota of vCPUs for all methods of purchase."""
    results = [
        quota_for(site, spot) for spot in sorted({site.cluster.spot(role) for role in ROLES})
    ]
    worst = next((result for result in results if result.outcome != OK), None)
    texts = [result.text for result in results if result.text]
    return worst or ok("; ".join(texts) or "nothing is to be launched")


def quota_for(site: CheckContext, spot: bool) -> CheckResult:
    """Checks the quota of either spot or on-demand vCPUs."""
    limits = quotas(site, spot)
    if not limits:
        return unknown("AWS lists no quotas of EC2 here")
    used, required = in_use(site, limits, spot), needed(site, limits, spot)
    texts = []
    for name, vcpus in required.items():
        limit = limits.get(name)
        if limit is None:
            texts.append(f"{name}: AWS lists none")
        elif used.get(name, 0) + vcpus > limit:
            return failed(
                f"{name}: {limit:g} vCPUs, {used.get(name, 0)} in use, {vcpus} more wanted; ask "
                "for more under Service Quotas, Amazon EC2, in the AWS console (takes hours to "
                "days), or launch fewer or smaller hosts"
            )
        else:
            texts.append(f"{name}: {used.get(name, 0)} + {vcpus} of {limit:g} vCPUs")
    return ok("; ".join(texts))


def quotas(site: CheckContext, spot: bool) -> dict[str, float]:
    """Returns the account's quotas of running vCPUs, by name."""
    listed = site.aws.constant("service-quotas.list_service_quotas", "Quotas", ServiceCode="ec2")
    pattern = SPOT if spot else ON_DEMAND
    return {item["QuotaName"]: float(item["Value"]) for item in listed
            if pattern.fullmatch(item["QuotaName"])}  # fmt: skip


def needed(site: CheckContext, names: Iterable[str], spot: bool) -> dict[str, int]:
    """Counts the vCPUs that the launch adds, by quota."""
    cluster = site.cluster
    have = [host.role for host in instances(site.aws, site.owned)]
    machines = (
        (MASTER, cluster.n_masters, cluster.master_type),
        (WORKER, cluster.n_workers, cluster.worker_type),
    )
    types = [
        type
        for role, count, type in machines
        if cluster.spot(role) == spot
        for _ in range(count - have.count(role))
    ]
    return counted(site, types, names)


def in_use(site: CheckContext, names: Iterable[str], spot: bool) -> dict[str, int]:
    """Counts the vCPUs in use in the whole account, by quota."""
    filters = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    described = site.aws.pages("ec2.describe_instances", "Reservations", Filters=filters)
    types = [
        host["InstanceType"]
        for batch in described
        for host in batch["Instances"]
        if (host.get("InstanceLifecycle") == "spot") == spot
    ]
    return counted(site, types, names)


def counted(site: CheckContext, types: list[str], names: Iterable[str]) -> dict[str, int]:
    """Sums the vCPUs of hosts of these types, by quota."""
    types_by_name = instance_types(site.aws, types) if types else {}
    sums: dict[str, int] = {}
    for type in types:
        if type in types_by_name:
            name = quota_of(type, names)
            sums[name] = sums.get(name, 0) + types_by_name[type].vcpus
    return sums


def quota_of(type: str, names: Iterable[str]) -> str:
    """Returns the name of the quota that a type counts against.

    Names list families, e.g. `All G and VT Spot Instance Requests` or `All P4, P3 and P2 ...`.

    >>> standard = "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
    >>> quota_of("m5.large", ["Running On-Demand G and VT instances", standard]) == standard
    True
    >>> quota_of("p5.48xlarge", ["All P4, P3 and P2 Spot Instance Requests",
    ...                          "All P5 Spot Instance Requests"])
    'All P5 Spot Instance Requests'
    """
    match = TYPE.match(type)
    letters, digits = match.groups() if match else (type, "")
    # "g4dn" is of family G4 and G; "trn1" of TRN; "mac1" of MAC: whole letters, then the first.
    for family in (letters + digits, letters, letters[:1] + digits, letters[:1]):
        for name in names:
            pattern_match = SPOT.fullmatch(name) or ON_DEMAND.fullmatch(name)
            if pattern_match and family.lower() in re.findall(
                r"[a-z]+\d*", pattern_match[1].lower()
            ):
                return name
    return f"the quota of {type}"
