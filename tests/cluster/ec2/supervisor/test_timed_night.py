"""Nights by a clock of the test: dollars within the bound, all steps, and nothing that runs on."""

import pytest
from cluster.ec2.faults.rig import rig
from cluster.ec2.supervisor.timed_night import (
    AUTOSTOP_M,
    EVERY_M,
    MAX_USD,
    STEPS,
    WORKERS,
    table,
    timed,
)


def check_money(report):
    assert report.spent_usd <= report.counted_usd <= min(report.promised_usd, MAX_USD)
    assert report.left == 0
    assert report.longest_idle_m <= AUTOSTOP_M + 3 * EVERY_M  # a look is late by up to one
    assert f"| {report.steps:,} of {STEPS:,} |" in table([report])


@pytest.mark.long
def test_a_night_with_seven_hours_without_capacity_takes_all_steps(tmp_path):
    with rig(tmp_path) as (ec2, cloud):
        report = timed(ec2, cloud, tmp_path, "two of five suffice", "--min-workers", "2")
    check_money(report)
    assert report.steps == STEPS
    assert report.longest_idle_m <= 3 * EVERY_M  # it goes on with the workers that are left
    assert report.hosts == 1 + WORKERS + 5  # one for each that went
    kinds = [kind for kind, _ in report.events]
    assert kinds[-2:] == ["done", "over"]
    assert kinds.count("joined") == 3
    assert 30 <= kinds.count("waiting") == report.requests < 110


@pytest.mark.long
def test_a_job_that_needs_all_workers_costs_no_more_than_autostop_without_capacity(tmp_path):
    with rig(tmp_path) as (ec2, cloud):
        report = timed(ec2, cloud, tmp_path, "all five needed", "--min-workers", "5")
    check_money(report)
    assert report.steps < STEPS
    assert report.minutes < 4 * 60
    assert [kind for kind, _ in report.events][-2:] == ["failed", "over"]
