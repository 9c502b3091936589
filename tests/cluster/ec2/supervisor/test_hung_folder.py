"""A folder of jobs or results that hangs: hosts end by money and autostop all the same."""

from dataclasses import replace
from datetime import timedelta
from threading import Event

import pytest
from cluster.ec2.faults.rig import rig
from cluster.ec2.supervisor.test_supervisor import RULES, START, SimulatedCluster, SimulatedHosts
from cluster.ec2.supervisor.timed_night import AUTOSTOP_M, EVERY_M, NIGHT, Folder, timed

from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.supervisor import bounded
from atomo_cluster.ec2.supervisor.background import in_thread
from atomo_cluster.ec2.supervisor.bounded import BoundedCalls, BoundedJob, BoundedStore
from atomo_cluster.ec2.supervisor.event_log import EventLog
from atomo_cluster.ec2.supervisor.loop import Supervisor
from atomo_cluster.ec2.supervisor.supervised_job import SupervisedJob
from atomo_cluster.errors import RemoteError

DEADLINE_S = 60.0


def test_a_call_that_hangs_is_left_alone_and_no_other_is_made_beside_it(tmp_path):
    go, futures = Event(), []

    def background(act):
        futures.append(in_thread(act))
        return futures[-1]

    calls = BoundedCalls("the folder", background)
    for _ in range(3):
        with pytest.raises(RemoteError, match="the folder does not answer"):
            calls.call(go.wait, 0.0)
    assert len(futures) == 1
    go.set()
    futures[0].result(DEADLINE_S)
    assert calls.call(lambda: 7, DEADLINE_S) == 7
    with pytest.raises(FileNotFoundError):
        calls.call(lambda: tmp_path.joinpath("none").read_text(), DEADLINE_S)


@pytest.fixture
def night(tmp_path, monkeypatch):
    """Returns a function that spends a night of steps of a minute, and returns its event log."""
    monkeypatch.setattr(bounded, "LOOK_S", 0.0)
    monkeypatch.setattr(bounded, "STOP_S", 0.0)

    def spend(hangs, steps=300, rules=RULES, **settings):
        cluster = SimulatedCluster(every=timedelta(minutes=1), **settings)
        story = EventLog(tmp_path / "story.jsonl", cluster.now)
        folder = Folder(lambda: cluster.step in hangs)
        job, store = BoundedJob(cluster, folder.call), BoundedStore(cluster, folder.call)
        supervisor = Supervisor(
            rules, job, SimulatedHosts(cluster), store, story, lambda: "", cluster.now
        )
        for _ in range(steps):
            folder.answer()
            supervisor.step()
            if "end worker,master" in cluster.log:
                break
        return cluster, story

    return spend


def test_money_ends_the_hosts_of_a_job_that_cannot_be_seen(night):
    rules = replace(RULES, autostop=None)
    cluster, story = night(range(5, 999), rules=rules, usd_per_hour=3.0)
    assert cluster.log == ["start 3", "store", "end worker,master"]
    assert cluster.now() < START + timedelta(hours=10 / 3.0)  # max_usd is 10
    assert [event.kind for event in story.events if event.kind != "note"][-2:] == ["unseen", "over"]


def test_autostop_counts_while_the_job_cannot_be_seen(night):
    cluster, story = night(range(5, 999), steps=120)
    # Its results cannot be seen either, and the master keeps them.
    assert [line for line in cluster.log if line.startswith("end")] == ["end worker"]
    (failure,) = [event for event in story.events if event.kind == "failed"]
    assert "nothing is seen training for 30 minutes: the folder of the jobs" in failure.text
    assert failure.when <= (START + timedelta(minutes=5 + 2 + 30 + 2)).isoformat()
    assert len(story.events) < 12  # and not some at every look


def test_a_folder_that_answers_again_costs_the_job_nothing(night):
    cluster, story = night(range(5, 25), steps=60)
    assert cluster.log == ["start 3"]
    kinds = [event.kind for event in story.events if event.kind != "note"]
    assert kinds == ["started", "unseen", "seen"]
    assert story.idle_since is None


def test_a_job_is_not_started_twice_where_its_folder_fails(tmp_path):
    job = SupervisedJob(Cluster(), [], tmp_path)  # asks nothing yet
    with pytest.raises(RemoteError, match="the folder of the jobs: "):
        job.running  # noqa: B018  # there is no checkout
    (tmp_path / "atomo").mkdir()
    assert not job.running
    job._number = 7
    (tmp_path / "atomo" / "runs").symlink_to("runs")  # as a mount that is stale, it has no state
    with pytest.raises(OSError, match="symbolic links"):
        job.running  # noqa: B018
    (tmp_path / "atomo" / "runs").unlink()
    with pytest.raises(RemoteError, match="the folder of the jobs has no job 7"):
        job.running  # noqa: B018


@pytest.mark.long
def test_a_night_with_a_folder_that_hangs_ends_by_autostop_or_by_money(tmp_path):
    with rig(tmp_path) as (ec2, cloud):
        report = timed(ec2, cloud, tmp_path, "hangs", hangs=range(20, 999))
        short = timed(ec2, cloud, tmp_path, "hangs, and autostop is 0", hangs=range(20, 999),
                      rules=replace(NIGHT, autostop=None, max_usd=0.5))  # fmt: skip
    assert report.minutes <= 20 + AUTOSTOP_M + 4 * EVERY_M
    assert [kind for kind, _ in report.events if kind != "note"][-3:] == [
        "unseen",
        "failed",
        "over",
    ]
    assert 0.2 < short.spent_usd <= short.counted_usd <= 0.5
    assert [kind for kind, _ in short.events if kind != "note"][-2:] == ["unseen", "over"]
    assert report.left == short.left == 0
