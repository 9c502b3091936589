"""Files in folders that others may write to: no link leads out of them."""

import os

import pytest
from cluster.ec2.faults.supervised import now

from atomo_cluster.ec2.cli import main
from atomo_cluster.ec2.hosts.host_files import write_host_files
from atomo_cluster.ec2.hosts.transfer import RemoteFile, fetch_one, inside
from atomo_cluster.ec2.money.ledger import LedgerEntry, read_entries, record_entries
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.supervisor.event_log import NOTE, EventLog
from atomo_cluster.ec2.supervisor.host_pool import words_in
from atomo_cluster.ec2.supervisor.results import files
from atomo_cluster.ec2.supervisor.supervised_job import SupervisedJob
from atomo_cluster.errors import ConfigError
from atomo_cluster.plain_files import open_plain
from atomo_cluster.virtual.files import write_hosts
from atomo_cluster.virtual.spec import ClusterFolder, VirtualCluster, hosts_of


@pytest.fixture
def precious(tmp_path):
    """Returns a file that links lead to, and nobody may change."""
    path = tmp_path / "precious"
    path.write_text("of somebody")
    yield path
    assert path.read_text() == "of somebody"


class Remote:
    """A source of one file."""

    def listed(self):
        return {"model": RemoteFile(3, 5.0, "mark")}

    def read(self, name, far, out, offset):
        out.write(b"new")


def test_a_download_follows_no_link(tmp_path, precious):
    folder = tmp_path / "run"
    fetch_one(Remote(), folder, "model", RemoteFile(3, 5.0, "mark"))
    assert (folder / "model").read_bytes() == b"new"
    part = folder / ".model.part"
    (folder / "sub").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="would be written outside of"):
        inside(folder, "sub/precious")
    (folder / "model").unlink()
    (folder / "model").symlink_to(precious)
    fetch_one(Remote(), folder, "model", RemoteFile(3, 5.0, "mark"))
    assert not (folder / "model").is_symlink()
    assert not part.exists()


def test_a_part_of_a_download_that_is_a_link_is_refused(tmp_path, precious):
    folder = tmp_path / "run"
    folder.mkdir()
    far = RemoteFile(3, 5.0, "mark")

    class Planting(Remote):
        def read(self, name, far, out, offset):
            """Leaves the part behind, as a broken connection does."""
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fetch_one(Planting(), folder, "model", far)
    (part,) = folder.iterdir()
    part.unlink()
    part.symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        fetch_one(Remote(), folder, "model", far)


def test_the_ledger_and_the_files_of_hosts_take_the_place_of_links(tmp_path, precious):
    settings = Cluster(name="test", state_dir=str(tmp_path / "state"))
    settings.state.mkdir(parents=True)
    for name in ("hosts.json", "hosts.new", "hosts", "hosts_alias", "hosts_address"):
        (settings.state / name).symlink_to(precious if name != "hosts.json" else tmp_path / "none")
    entry = LedgerEntry("i-1", "ana", "m5.large", *[now().isoformat()] * 2, True, 0.1)
    record_entries(settings, "ana", [entry])
    assert list(read_entries(settings, "ana").values()) == [entry]
    write_host_files(settings.state, ["10.0.0.1"])
    assert (settings.state / "hosts_address").read_text() == "10.0.0.1\n"


def test_init_writes_no_file_through_a_link(tmp_path, precious):
    path = tmp_path / "cluster.yaml"
    path.symlink_to(precious)
    assert main(["init", str(path)]) == 2
    assert main(["init", str(path), "--force"]) == 0
    assert not path.is_symlink()
    path.unlink()
    path.symlink_to(tmp_path / "none")  # a link that leads nowhere is a file that is there
    assert main(["init", str(path)]) == 2
    assert not (tmp_path / "none").exists()


def test_the_files_of_the_supervisor_take_the_place_of_links(tmp_path, precious):
    job = SupervisedJob(Cluster(), [], tmp_path)
    job._hosts.parent.mkdir(parents=True)
    job._hosts.symlink_to(precious)
    job._write_hosts([])
    assert not job._hosts.is_symlink()
    (tmp_path / "notices").symlink_to(precious)
    assert words_in(tmp_path / "notices") == []


def test_the_files_of_a_virtual_cluster_take_the_place_of_links(tmp_path, precious):
    place = ClusterFolder(tmp_path / "virtual")
    place.folder.mkdir()
    hosts, prefix_length = hosts_of("10.77.0.0/24", 2)
    cluster = VirtualCluster(hosts, prefix_length, 10**9, None, 1500, None)
    for path in (place.record, place.hosts_address, place.folder / "etc_hosts"):
        path.symlink_to(precious)
    place.save(cluster)
    write_hosts(place, cluster)
    assert place.load() == cluster
    (place.folder / "log").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        open_plain(place.folder / "log")


def test_events_are_not_added_through_a_link(tmp_path, precious, capsys):
    (tmp_path / "story.jsonl").symlink_to(precious)
    story = EventLog(tmp_path / "story.jsonl", now)
    story.tell(NOTE, "a note")
    assert "symbolic links" in capsys.readouterr().err


def test_results_that_are_links_are_not_stored(tmp_path, precious):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "model").write_text("weights")
    (folder / "link").symlink_to(precious)
    os.mkfifo(folder / "pipe")
    assert [name for name, _ in files(folder)] == ["model"]
