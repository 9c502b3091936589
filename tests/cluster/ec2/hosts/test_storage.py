"""Results that outlive their cluster, and files that go on where they broke off."""

import getpass
import os
from datetime import datetime
from pathlib import Path

import pytest
from cluster.ec2.support.sshd import Host, make_key, why_not

from atomo_cluster.ec2.aws.bucket import Bucket
from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.cli import main
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.supervisor.event_log import Event, EventLog
from atomo_cluster.ec2.supervisor.results import FETCHED, LocalResults, S3Results, SyncRound
from atomo_cluster.errors import CloudError

pytestmark = pytest.mark.long

PLACE = "s3://results-of-tests/runs/one"
CHECKPOINT = bytes(range(256)) * 40


def write(folder: Path, **files: bytes) -> None:
    """A run's folder; its files are a minute old."""
    for name, content in files.items():
        path = folder / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        old = path.stat().st_mtime - 60
        os.utime(path, (old, old))


def contents(folder: Path) -> dict[str, bytes]:
    """Returns all files below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture
def bucket(cloud, monkeypatch):
    """Returns an empty place on S3."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", cloud.moto.url)
    cloud.moto.client("s3").create_bucket(Bucket="results-of-tests")
    return Bucket(Aws("us-east-1"), PLACE)


@pytest.fixture
def kept(bucket, tmp_path):
    """Returns the supervisor's store of results, on a master whose home is `tmp_path`."""
    cluster = Cluster(supervise=True, results=PLACE)
    return S3Results(cluster, tmp_path, bucket, tmp_path / "story.jsonl")


def test_results_are_safe_once_s3_has_every_file_as_it_is(kept, bucket, tmp_path):
    runs = tmp_path / "atomo/runs"
    assert not kept.safe
    write(runs, model=CHECKPOINT, **{"metrics.jsonl": b"{}\n", "half.tmp": b"torn"})
    kept.finish()
    assert kept.safe
    assert sorted(bucket.listed()) == ["train/metrics.jsonl", "train/model"]
    first = {name: one.when for name, one in bucket.listed().items()}
    (runs / "train/metrics.jsonl").write_bytes(b"{}\n{}\n")
    assert not kept.safe
    kept.finish()
    assert bucket.listed()["train/metrics.jsonl"].size == 6
    assert bucket.listed()["train/model"].when == first["train/model"]  # once is enough


def test_results_that_s3_refuses_are_not_safe(kept, bucket, tmp_path, cloud):
    write(tmp_path / "atomo/runs", model=CHECKPOINT)
    cloud.moto.client("s3").delete_bucket(Bucket="results-of-tests")
    kept.finish()
    assert not kept.safe
    kept._last = SyncRound(kept._last.begun.replace(year=2020), kept._last.error)
    with pytest.raises(CloudError, match=r"results: s3\.list_objects_v2: NoSuchBucket"):
        kept.sync()


def test_a_run_comes_home_from_s3_and_a_broken_off_file_goes_on(
    kept, bucket, tmp_path, ec2, monkeypatch
):
    write(tmp_path / "atomo/runs", model=CHECKPOINT)
    kept.finish()
    words = ("--supervise", "yes", "--results", PLACE, "--master-method", "on-demand")
    home, drain, asked = tmp_path / "home", Aws.drain, []

    def cut(self, body, out, chunk):
        out.write(body.read(1000))
        raise CloudError("s3.get_object: the line is cut")

    monkeypatch.setattr(Aws, "drain", cut)
    assert ec2("fetch", "--to", str(home), *words).code == 10
    monkeypatch.setattr(Aws, "drain", lambda self, body, *rest: (
        asked.append(int(body._content_length)), drain(self, body, *rest)
    ))  # fmt: skip
    assert ec2("fetch", "--to", str(home), *words).code == 0
    assert contents(home) == contents(tmp_path / "atomo/runs")
    assert asked == [len(CHECKPOINT) - 1000]
    again = ec2("fetch", "--to", str(home), *words, "--json")
    assert again.record["fetched"] == []


def test_the_story_is_told_after_the_end(kept, bucket, tmp_path, ec2):
    story = EventLog(tmp_path / "story.jsonl", datetime.now)
    story.tell("over", "the job is done; all hosts are ordered to end")
    kept.finish()
    words = ("--supervise", "yes", "--results", PLACE, "--master-method", "on-demand")
    result = ec2("status", "--json", *words).record["story"]
    assert [Event(**one) for one in result] == story.events


class Far:
    """A host of one's own, with a run on it."""

    def __init__(self, folder: Path) -> None:
        key = folder / "state/lab/id_ed25519"
        key.parent.mkdir(parents=True)
        self.host = Host(folder / "one", make_key(key))
        self.runs = self.host.home / "atomo/runs"
        (folder / "machines").write_text(f"127.0.0.1:{self.host.port}\n")
        self.options = ["--hostfile", str(folder / "machines"), "--name", "lab"]
        self.options += ["--state-dir", str(folder / "state"), "--ssh-username", getpass.getuser()]

    def __call__(self, command: str, *words: str) -> int:
        return main([command, *self.options, *words])


@pytest.fixture
def far(tmp_path, monkeypatch):
    if why_not():
        pytest.skip(f"NOT TESTED: {why_not()}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("atomo_cluster.ec2.hosts.transfer.LARGE", 5000)
    made = Far(tmp_path)
    yield made
    made.host.stop()


CUT = '#!/bin/bash\n/bin/{0} "$@" | head -c 1000\nrm "$0"\nexit 1\n'


def test_a_run_comes_home_from_the_master_and_a_broken_off_file_goes_on(far, tmp_path):
    write(far.runs, model=CHECKPOINT)
    far.host.program("dd", CUT.format("dd"))
    assert far("fetch", "--to", "home") == 11
    (part,) = contents(tmp_path / "home").values()
    assert part == CHECKPOINT[:1000]
    kept = LocalResults(Cluster(), far.host.home)
    assert not kept.safe
    assert far("fetch", "--to", "home") == 0
    assert contents(tmp_path / "home") == contents(far.runs)
    assert (far.host.home / FETCHED).exists()
    assert kept.safe
    late = far.runs / "train/late"
    late.write_text("")
    os.utime(late, (late.stat().st_mtime + 60,) * 2)
    assert not kept.safe


def test_a_data_set_goes_to_the_hosts_and_a_broken_off_file_goes_on(far, tmp_path, capsys):
    data = tmp_path / "data"
    write(data, large=CHECKPOINT, **{"a b": b"small", "deep/er": b"too"})
    far.host.program("cat", CUT.format("cat"))
    assert far("upload", "data/train", "sets/mine") == 11
    assert far("upload", "data/train", "sets/mine") == 0
    assert contents(far.host.home / "atomo/sets/mine") == contents(data / "train")
    capsys.readouterr()
    assert far("upload", "data/train", "sets/mine") == 0
    assert "0 files went to 1 hosts" in capsys.readouterr().out
    assert far("upload", "nothing-here", "x") == 2
