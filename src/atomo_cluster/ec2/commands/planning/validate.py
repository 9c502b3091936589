"""`validate`: runs every check that costs nothing."""

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Final

from rich.table import Column, Table

from atomo_cluster.ec2.checks.preflight import Finding, validate
from atomo_cluster.ec2.checks.results import CheckContext
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.errors import NotReady

HELP: Final = """\
  pytorch_ec2.py validate
  pytorch_ec2.py validate --config big.yaml --json

Costs nothing and changes nothing. Each failure says what to do; `unknown` means that AWS did not
answer. That stops nothing where a launch can do without the answer; who asks, whether the name is
free, instance types, zone, image and subnet must be known."""


def arguments(parser: ArgumentParser) -> None:
    """Adds no options."""


def run(run: Run) -> int:
    """Shows the result of every check."""
    findings = validate(CheckContext(run.aws, run.cluster, run.owned))
    table = Table("check", "outcome", Column("says", overflow="fold"), show_header=False)
    for finding in findings:
        table.add_row(finding.check, finding.outcome, finding.text)
    run.show(table)
    run.tell([asdict(finding) for finding in findings])
    refuse(findings)
    return 0


def refuse(findings: list[Finding]) -> None:
    """Raises NotReady if a check failed."""
    failures = [finding for finding in findings if not finding.passed]
    if failures:
        lines = "\n".join(f"  {finding.check}: {finding.text}" for finding in failures)
        raise NotReady(f"{len(failures)} of {len(findings)} checks failed:\n{lines}")
