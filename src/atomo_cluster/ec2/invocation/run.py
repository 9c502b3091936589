"""The context of a command: options, settings, AWS and output."""

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.identity import Identity, identity_of
from atomo_cluster.ec2.aws.inventory import instances, instances_by_id
from atomo_cluster.ec2.aws.tags import OWNER, ClusterTags
from atomo_cluster.ec2.invocation.document import Document
from atomo_cluster.ec2.invocation.foreign_file import ForeignResource, read_foreign
from atomo_cluster.ec2.invocation.ledger_file import LedgerEntry, read_file, recorded_owners
from atomo_cluster.ec2.invocation.wrapping import wrap_line
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.place import Place
from atomo_cluster.ec2.settings.yaml_file import load, overrides
from atomo_cluster.errors import CloudError, ConfigError, Declined
from atomo_cluster.visible import visible

__all__ = ["Run"]


@final
class Run:
    """One run of a command."""

    def __init__(
        self,
        options: argparse.Namespace,
        document: Document,
        settled: Cluster | None = None,
        root: "Run | None" = None,
    ) -> None:
        self.options = options
        self._document = document
        self._settled = settled
        self._root = root or self  # asks who calls, once for all regions
        self._identity: Identity | CloudError | None = None

    @cached_property
    def given(self) -> Cluster:
        """The settings from file and command line."""
        return load(self.options.config, overrides(self.options))

    @cached_property
    def cluster(self) -> Cluster:
        """The settings in one region: that in which the cluster has hosts, or the first accepted.

        Hosts of --hostfile have no region, so AWS is not asked.
        """
        if self._settled is not None:
            return self._settled
        if getattr(self.options, "hostfile", None):
            return self.given.at(self.given.all_regions[0])
        if self.occupied is not None:
            return self.occupied.cluster
        return self.given.at(self.given.all_regions[0])

    @cached_property
    def occupied(self) -> "Run | None":
        """This run in the region in which the cluster has hosts; None: in none, or one will do.

        Accepted regions come before further regions of the ledger.
        """
        candidates = self.everywhere()
        if len(candidates) == 1:
            return None
        return next((run for run in candidates if run.has_hosts()), None)

    def has_hosts(self) -> bool:
        """True if the cluster has hosts in the region of this run.

        Raises:
            CloudError: AWS does not say; the message names the region.
        """
        try:
            return bool(instances(self.aws, self.owned))
        except CloudError as error:
            raise CloudError(
                f"{self.aws.region} does not say whether hosts of {self.cluster.name} run there, "
                f"and cost: {error}",
                error.code,
            ) from error

    def accepted(self) -> "list[Run]":
        """Returns this run in each accepted region."""
        if self._settled is not None:
            return [self]
        return [self.at(self.given.at(region)) for region in self.given.all_regions]

    def recorded(self) -> "list[Run]":
        """Returns this run in further regions, in which the ledger has hosts that may live, or
        resources that were attached to them by hand.

        A region of the command line is meant alone.
        """
        if self._settled is not None or self.region_given:
            return []
        accepted = self.given.all_regions
        places = [life.place for life in self.lives]
        places += [resource.place for resource in self.foreign]
        further = [place for place in places if place.region and place.region not in accepted]
        here = self.accepted()[0].place if further else Place()
        regions = dict.fromkeys(place.region for place in further if here.sees(place))
        return [self.at(self.given.moved(region)) for region in regions]

    def everywhere(self) -> "list[Run]":
        """Returns this run in each accepted region, then in further regions of the ledger."""
        return [*self.accepted(), *self.recorded()]

    def looked_at(self) -> "list[Run]":
        """Returns this run in the region that has the cluster's hosts, or in all accepted ones."""
        several = self._settled is None and len(self.given.all_regions) > 1
        return self.accepted() if several and self.occupied is None else [self]

    def at(self, settled: Cluster) -> "Run":
        """Returns this run with the settings for one region."""
        return Run(self.options, self._document, settled, self._root)

    @property
    def region_given(self) -> bool:
        """True if the command line names a region."""
        return bool({"region", "regions"} & overrides(self.options).keys())

    @cached_property
    def lives(self) -> list[LedgerEntry]:
        """The hosts of all places and owners that the ledger has and that may live."""
        try:
            return [entry for entry in read_file(self.given) if not entry.ended]
        except ConfigError as error:
            self.warn(f"warning: hosts in other places are not known: {error}")
            return []

    @cached_property
    def foreign(self) -> list[ForeignResource]:
        """The resources attached by hand that may be left of ended hosts, of all places."""
        try:
            return read_foreign(self.given)
        except ConfigError as error:
            self.warn(f"warning: what was attached to hosts by hand is not known: {error}")
            return []

    @cached_property
    def place(self) -> Place:
        """The place of this run; its account is empty if AWS does not tell it."""
        try:
            account = self.identity.account
        except CloudError:
            account = self._recorded_account()
        profile = os.environ.get("AWS_PROFILE", "")
        return Place(account, self.aws.region, self.aws.endpoint, profile)

    def _recorded_account(self) -> str:
        """Returns the account of a recorded host that AWS lists here; empty: it lists none."""
        region, endpoint = self.aws.region, self.aws.endpoint
        accounts = {
            life.id: life.account
            for life in self.lives
            if life.account and (life.region, life.endpoint) == (region, endpoint)
        }
        with suppress(CloudError):
            return next((accounts[host.id] for host in instances_by_id(self.aws, accounts)), "")
        return ""

    @property
    def identity(self) -> Identity:
        """The caller, as AWS knows it."""
        root = self._root
        if root._identity is None:
            region = self._settled.region if self._settled else self.given.all_regions[0]
            try:
                root._identity = identity_of(Aws(region, self.options.endpoint_url))
            except CloudError as error:
                root._identity = error
        if isinstance(root._identity, CloudError):
            raise root._identity
        return root._identity

    @cached_property
    def aws(self) -> Aws:
        """AWS in the cluster's region."""
        return Aws(self.cluster.region, self.options.endpoint_url, self.warn)

    @cached_property
    def owned(self) -> ClusterTags:
        """The tags of the cluster; without the setting, the owner is the caller's identity."""
        owner = self.cluster.owner or self._caller()
        return ClusterTags(self.cluster.name, owner, self.cluster.own_tags)

    def _caller(self) -> str:
        """Returns the caller's identity; where STS does not answer, the owner in the ledger.

        Hosts cost also while STS does not answer.

        Raises:
            CloudError: STS does not answer, and the ledger of this machine names no single owner.
        """
        try:
            return self.identity.name
        except CloudError as error:
            owners = recorded_owners(self.cluster)
            if len(owners) != 1:
                raise CloudError(
                    f"{error}; --owner, with the value of the tag {OWNER} of the hosts, does "
                    "without STS",
                    error.code,
                ) from error
            self.say(f"AWS does not say who asks ({error}); as in the ledger: owner {owners[0]}")
            return owners[0]

    @property
    def as_json(self) -> bool:
        return self._document.enabled

    def say(self, text: str) -> None:
        """Prints a message; with --json to stderr.

        A terminal gets wrapped lines. Scripts that search the text get each message in one piece.
        """
        out = sys.stderr if self.as_json else sys.stdout
        text = visible(text)
        if out.isatty():
            width = shutil.get_terminal_size().columns
            text = "\n".join(wrap_line(line, width) for line in text.splitlines())
        out.write(text + "\n")
        out.flush()

    def warn(self, text: str) -> None:
        """Prints a message to stderr, apart from the output of the command."""
        sys.stderr.write(f"{visible(text)}\n")
        sys.stderr.flush()

    def show(self, renderable: Any) -> None:
        """Prints a table."""
        from atomo_cluster.ec2.invocation.console import (
            console_on,  # rich is for commands that show a table
        )

        console_on(errors=self.as_json).print(renderable)

    def tell(self, record: Any) -> None:
        """Adds a record to the JSON document, which is printed when the command ends."""
        self._document.tell(record)

    def tell_dry_run(self, verdicts: Mapping[str, str], purpose: str) -> None:
        """Reports the predictions of DryRun for each call; empty text: it would succeed.

        Raises:
            CloudError: `purpose` would fail.
        """
        for action, refusal in verdicts.items():
            self.say(f"dry run  {action}: {refusal or 'EC2 would do it'}")
        self.tell({"dry_run": verdicts})
        refusals = [refusal for refusal in verdicts.values() if refusal]
        if refusals:
            raise CloudError(f"{purpose} would fail: {refusals[0]}")

    def confirm(self, question: str = "Proceed?") -> None:
        """Asks for confirmation, unless --yes.

        Raises:
            Declined: the answer was not yes.
        """
        if self.options.yes:
            return
        sys.stderr.write(f"{visible(question)} [y/N] ")
        sys.stderr.flush()
        # unbounded: nothing has been done yet, and a person may think
        answer = sys.stdin.readline().strip().lower()
        if answer not in ("y", "yes"):
            raise Declined("not done, nothing was changed (--yes answers for scripts)")
