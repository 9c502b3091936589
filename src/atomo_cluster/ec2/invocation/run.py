"""The context of a command: options, settings, AWS and output."""

import argparse
import shutil
import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Any, final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.identity import caller
from atomo_cluster.ec2.aws.inventory import instances
from atomo_cluster.ec2.aws.tags import OWNER, ClusterTags
from atomo_cluster.ec2.invocation.document import Document
from atomo_cluster.ec2.invocation.recorded_owners import recorded_owners
from atomo_cluster.ec2.invocation.wrapping import wrap_line
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.yaml_file import load, overrides
from atomo_cluster.errors import CloudError, Declined
from atomo_cluster.visible import visible

__all__ = ["Run"]


@final
class Run:
    """One run of a command."""

    def __init__(
        self, options: argparse.Namespace, document: Document, settled: Cluster | None = None
    ) -> None:
        self.options = options
        self._document = document
        self._settled = settled

    @cached_property
    def given(self) -> Cluster:
        """The settings from file and command line."""
        return load(self.options.config, overrides(self.options))

    @cached_property
    def cluster(self) -> Cluster:
        """The settings in one region: the accepted region in which the cluster has hosts.

        Without hosts it is the first one. Hosts of --hostfile have no region, so AWS is not asked.
        """
        if self._settled is not None:
            return self._settled
        if len(self.given.all_regions) == 1 or getattr(self.options, "hostfile", None):
            return self.given.at(self.given.all_regions[0])
        here = (run for run in self.everywhere() if instances(run.aws, run.owned))
        return next(here, self.everywhere()[0]).cluster

    def everywhere(self) -> "list[Run]":
        """Returns this run in each accepted region."""
        return [Run(self.options, self._document, self.given.at(region))
                for region in self.given.all_regions]  # fmt: skip

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
            return caller(self.aws)
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
        """Prints a warning or an error to stderr."""
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
