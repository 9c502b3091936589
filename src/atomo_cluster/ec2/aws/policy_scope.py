"""The scope of a policy: the cluster, account and regions that its statements are bound to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomo_cluster.ec2.aws.identity import owner_of
from atomo_cluster.ec2.aws.tags import CLUSTER, ENDS, HOSTS, OWNER, ClusterTags
from atomo_cluster.ec2.settings.cluster import Cluster

__all__ = ["Conditions", "PolicyScope", "Statement", "allow", "scope_of"]

Statement = dict[str, Any]
Conditions = Mapping[str, str | Sequence[str]]
REGION: Final = "aws:RequestedRegion"
PARTITIONS: Final[Mapping[str, str]] = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
UNBOUND: Final = "none"  # permissions_boundary: roles without one


@dataclass(frozen=True)
class PolicyScope:
    """A cluster in an account. Statements that it builds hold nowhere else."""

    cluster: Cluster
    account: str = "*"
    owner: str = ""  # empty: of any owner
    identity: str = ""  # the ARN of who gets the policy, as STS has it; empty: unknown

    @property
    def spot(self) -> bool:
        """True if hosts are spot instances, which a fleet launches from a launch template."""
        return any(map(self.cluster.spot, ("master", "worker")))

    @property
    def partition(self) -> str:
        """The partition of ARNs, e.g. aws."""
        region = self.cluster.all_regions[0]
        return next((name for head, name in PARTITIONS.items() if region.startswith(head)), "aws")

    @property
    def master_roles(self) -> tuple[str, ...]:
        """The names of the masters' roles, one per region; a wildcard for an unknown owner."""
        if not self.owner:
            return (f"atomo-{self.cluster.name}-*",)
        owned = ClusterTags(self.cluster.name, self.owner)
        return tuple(owned.role_name(region) for region in self.cluster.all_regions)

    @property
    def host_roles(self) -> tuple[str, ...]:
        """The names of the roles that only admit Session Manager."""
        return tuple(f"{name}{HOSTS}" for name in self.master_roles)

    @property
    def role_names(self) -> tuple[str, ...]:
        """The names of all roles that are made; a profile and its role share a name."""
        if not self.owner:
            return self.master_roles
        names = self.master_roles if self.cluster.needs_profile else ()
        return (*names, *self.host_roles) if self.cluster.managed else names

    @property
    def end_roles(self) -> tuple[str, ...]:
        """The names of the roles with which AWS ends hosts after their fuses."""
        return tuple(f"{name}{ENDS}" for name in self.master_roles)

    @property
    def earlier_role_names(self) -> tuple[str, ...]:
        """The names of roles that earlier versions made, without a region; `shutdown` ends them."""
        if not self.owner:
            return ()
        label = ClusterTags(self.cluster.name, self.owner).label
        return (label, f"{label}{HOSTS}")

    @property
    def boundary(self) -> str:
        """The ARN of the policy that bounds roles; empty: none does."""
        name = self.cluster.permissions_boundary or f"atomo-{self.cluster.name}-boundary"
        return "" if name == UNBOUND else self.arn("iam", f"policy/{name}")

    @property
    def end_boundary(self) -> str:
        """The ARN of the policy that bounds the end roles; empty: none does.

        Only an administrator makes these roles, unless the settings have the cluster make others.
        """
        named = self.cluster.makes_roles or self.cluster.permissions_boundary
        return self.boundary if named else ""

    @property
    def principals(self) -> list[str]:
        """The ARNs of the identity in IAM: a user, or a role, whose path STS does not tell."""
        kind, _, name = self.identity.split(":")[-1].partition("/")
        if not name:
            return [self.arn("iam", "user/*"), self.arn("iam", "role/*")]
        if kind != "assumed-role":
            return [self.arn("iam", f"{kind}/{name}")]
        role = name.split("/")[0]
        return [self.arn("iam", f"role/{role}"), self.arn("iam", f"role/*/{role}")]

    def arn(self, service: str, resource: str, account: str | None = None) -> str:
        """Returns the ARN of a resource in any region."""
        region = "" if service in ("iam", "s3") else "*"
        owner = self.account if account is None else account
        return f"arn:{self.partition}:{service}:{region}:{owner}:{resource}"

    def ec2(self, *kinds: str) -> list[str]:
        """Returns the ARNs of EC2's resources of some kinds; images have no account."""
        return [
            self.arn("ec2", f"{kind}/*", "" if kind in ("image", "snapshot") else None)
            for kind in kinds
        ]

    def iam(self, names: Iterable[str], *kinds: str) -> list[str]:
        """Returns the ARNs of roles or instance profiles with these names."""
        listed = list(names)
        return [self.arn("iam", f"{kind}/{name}") for kind in kinds for name in listed]

    def tags(self, source: str, key: str = CLUSTER) -> dict[str, str]:
        """Returns the conditions on the cluster's tags; `source` is RequestTag or ResourceTag."""
        owner = {f"{source}/{OWNER}": self.owner} if self.owner else {}
        return {f"{source}/{key}": self.cluster.name, **owner}

    @property
    def requested(self) -> dict[str, str]:
        """The conditions on the tags of a new resource."""
        return self.tags("aws:RequestTag")

    @property
    def tagged(self) -> dict[str, str]:
        """The conditions on the tags of an existing resource."""
        return self.tags("aws:ResourceTag")

    def regional(
        self,
        name: str,
        actions: Sequence[str],
        resources: str | Sequence[str] = "*",
        equals: Conditions | None = None,
        **operators: Conditions,
    ) -> Statement:
        """Returns a statement that holds in the regions of the cluster."""
        region = {REGION: list(self.cluster.all_regions)}
        return allow(name, actions, resources, {**(equals or {}), **region}, **operators)


def scope_of(cluster: Cluster, arn: str) -> PolicyScope:
    """Returns the scope for an identity: its account, and its name as owner unless set.

    >>> scope = scope_of(Cluster(name="lab"), "arn:aws:iam::123456789012:user/ana")
    >>> scope.account, scope.owner
    ('123456789012', 'user/ana')
    """
    parts = arn.split(":")
    account = parts[4] if len(parts) > 5 and parts[4] else "*"
    return PolicyScope(cluster, account, cluster.owner or owner_of(arn), arn)


def allow(
    name: str,
    actions: Sequence[str],
    resources: str | Sequence[str] = "*",
    equals: Conditions | None = None,
    **operators: Conditions,
) -> Statement:
    """Returns a statement that allows actions; `equals` are conditions of StringEquals."""
    conditions = {"StringEquals": dict(equals)} if equals else {}
    conditions |= {operator: dict(values) for operator, values in operators.items()}
    statement = {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": resources}
    return {**statement, "Condition": conditions} if conditions else statement
