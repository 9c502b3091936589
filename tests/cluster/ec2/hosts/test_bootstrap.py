"""Fresh hosts to a cluster, over real sshds, with a stand-in for the installation alone."""

import getpass
import io
import shutil
from pathlib import Path

import pytest
from cluster.ec2.support.sshd import RECORDER, Host, make_key, ssh_config, why_not

from atomo_cluster.ec2.cli import main
from atomo_cluster.ec2.hosts.checkout import checkout_files
from atomo_cluster.ec2.hosts.progress import Steps
from atomo_cluster.ec2.hosts.ssh import Host as Named

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=f"NOT TESTED: {why_not()}"),
    pytest.mark.slow,
]
ROOT = Path(__file__).parents[4]
PRE_RUN = '#!/bin/bash\necho "pre_run $*" >>"$HOME/called"\n'


@pytest.fixture
def checkout(tmp_path):
    """Returns a small checkout: our step script, and an installation that only notes its call."""
    folder = tmp_path / "checkout"
    (folder / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools/remote_script.sh", folder / "tools")
    (folder / "tools/pre_run.sh").write_text(PRE_RUN)
    (folder / "README.md").write_text("first")
    for left_out in (".venv", "runs"):
        (folder / left_out).mkdir()
        (folder / left_out / "large").write_text("")
    return folder


class Machines:
    """Three hosts in a host file, and bootstrap for them."""

    def __init__(self, folder, checkout):
        (folder / "state/lab").mkdir(parents=True)
        self.private = folder / "state/lab/id_ed25519"
        self.public = make_key(self.private)
        self.hosts = [Host(folder / name, self.public) for name in ("one", "two", "three")]
        lines = "".join(f"127.0.0.1:{host.port}\n" for host in self.hosts)
        (folder / "machines").write_text(lines)
        self.options = ["--hostfile", str(folder / "machines"), "--name", "lab"]
        self.options += ["--state-dir", str(folder / "state"), "--source", str(checkout)]
        self.options += ["--ssh-username", getpass.getuser(), "--wait", "0"]
        self.mount = folder / "share" / "nfs"
        self.nfs = ["--nfs-ip-address", "10.9.8.7", "--nfs-mount-point", str(self.mount)]
        # All three hosts share one disk, so nothing may be written below the mount.
        self.nfs += ["--base-out-dir", str(folder / "out")]

    def __call__(self, command, *words):
        return main([command, *self.options, *words])

    def text(self, name):
        """Returns the text of a file on each host."""
        return [(host.home / name).read_text() for host in self.hosts]


@pytest.fixture
def machines(tmp_path, checkout, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    made = Machines(tmp_path, checkout)
    yield made
    for host in made.hosts:
        host.stop()


def test_bootstrap_makes_a_cluster(machines, capsys):
    assert machines("bootstrap", "--setup-commands", "touch set-up", "echo $PWD > where") == 0
    out = capsys.readouterr().out
    assert "deeplearning-worker3    environment   done" in out
    assert "3 hosts are ready" in out
    assert machines.text("atomo/README.md") == ["first"] * 3
    assert machines.text("atomo/where") == [f"{host.home}/atomo\n" for host in machines.hosts]
    assert not any((host.home / "atomo/.venv").exists() for host in machines.hosts)
    aliases = [f"deeplearning-worker{number}" for number in (1, 2, 3)]
    assert machines.text("atomo/hosts_address") == ["".join(f"{name}\n" for name in aliases)] * 3
    assert machines.text(".atomo/master") == ["deeplearning-worker1\n"] * 3
    assert all("pre_run \n" in host.called for host in machines.hosts)


@pytest.mark.long
def test_the_clusters_key_is_its_own_and_the_users_stays_here(machines):
    assert machines("bootstrap") == 0
    keys = set(machines.text(".ssh/atomo_cluster"))
    assert len(keys) == 1
    users = machines.private.read_text()
    assert keys != {users}
    secret = users.splitlines()[2]
    for host in machines.hosts:
        assert (host.home / ".ssh/atomo_cluster").stat().st_mode & 0o777 == 0o600
        files = [path for path in host.folder.rglob("*") if path.is_file()]
        assert not any(secret in path.read_text(errors="replace") for path in files)
        admitted = (host.home / ".ssh/authorized_keys").read_text()
        assert machines.public.split()[1] in admitted
        assert admitted.count("ssh-ed25519") == 2


@pytest.mark.long
def test_bootstrap_again_changes_what_changed_and_deletes_nothing(machines, checkout):
    assert machines("bootstrap") == 0
    keys, settings = machines.text(".ssh/atomo_cluster"), machines.text(".ssh/config")
    for host in machines.hosts:
        (host.home / "atomo/results").write_text("precious")
    (checkout / "README.md").write_text("second")
    assert machines("bootstrap") == 0
    assert machines.text("atomo/README.md") == ["second"] * 3
    assert machines.text("atomo/results") == ["precious"] * 3
    assert machines.text(".ssh/atomo_cluster") == keys
    assert machines.text(".ssh/config") == settings
    assert all(text.count("ssh-ed25519") == 2 for text in machines.text(".ssh/authorized_keys"))


@pytest.mark.long
def test_a_users_own_ssh_settings_stay(machines):
    config = machines.hosts[0].home / ".ssh/config"
    config.write_text("Host mine\n  User me\n")
    assert machines("bootstrap") == 0
    assert config.read_text().endswith("\nHost mine\n  User me\n")


def test_a_master_that_cannot_reach_a_host_is_named(machines, capsys):
    machines.hosts[0].program("ssh", "#!/bin/bash\nexit 255\n")
    assert machines("bootstrap") == 11
    output = capsys.readouterr().err
    assert "the master cannot log in to deeplearning-worker1 with the cluster's key" in output


@pytest.mark.long
def test_an_installation_that_fails_is_named_and_the_others_go_on(machines, checkout, capsys):
    failing = PRE_RUN + '[ "$HOME" = {home} ] && {{ echo "no space left" >&2; exit 28; }}\nexit 0\n'
    script = failing.format(home=machines.hosts[1].home)
    (checkout / "tools/pre_run.sh").write_text(script)
    assert machines("bootstrap") == 11
    output = capsys.readouterr().err
    assert "environment failed on 1 of 3 hosts:" in output
    assert "deeplearning-worker2 (127.0.0.1): installing: exit code 28: no space left" in output
    assert all("pre_run" in host.called for host in machines.hosts)


def test_hosts_that_are_not_there_are_named(machines, capsys):
    machines.hosts[2].stop()
    assert machines("bootstrap") == 11
    output = capsys.readouterr().err
    assert "reach failed on 1 of 3 hosts:\n  deeplearning-worker3 (127.0.0.1): " in output
    assert not (machines.hosts[0].home / "atomo").exists()
    machines.hosts[2].start()  # for the fixture to stop


def test_a_wrong_key_is_named(machines, capsys, tmp_path):
    for host in machines.hosts:
        host.admit(make_key(host.folder / "somebody"))
    assert machines("bootstrap") == 11
    assert "the host does not take this key" in capsys.readouterr().err


@pytest.mark.long
def test_the_shared_folder_is_mounted_once(machines):
    assert machines("setup_nfs", *machines.nfs) == 0
    options = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
    wanted = f"mount -t nfs4 -o {options} 10.9.8.7:/ {machines.mount}\n"
    assert all(host.called.count(wanted) == 1 for host in machines.hosts)
    assert (machines.mount.parent.parent / "out").is_dir()
    assert machines("bootstrap", *machines.nfs) == 0
    assert all(host.called.count("mount -t nfs4") == 1 for host in machines.hosts)


@pytest.mark.long
def test_the_masters_disk_is_shared(machines):
    words = [*machines.nfs, "--nfs-ip-address", "master"]
    assert machines("setup_nfs", *words) == 0
    master, *workers = machines.hosts
    exports = (master.folder / "root/etc/exports.d/atomo.exports").read_text()
    how = "(rw,sync,fsid=0,no_subtree_check)"
    names = "".join(f" deeplearning-worker{number}{how}" for number in (2, 3))
    assert exports == f"{machines.mount}{names}\n"
    assert "exportfs -ra" in master.called
    assert "mount -t" not in master.called
    assert all(f"deeplearning-worker1:/ {machines.mount}\n" in host.called for host in workers)
    assert machines("bootstrap", *words) == 0


@pytest.mark.long
def test_files_at_the_mount_point_are_never_hidden_or_deleted(machines, capsys):
    machines.mount.mkdir(parents=True)
    (machines.mount / "thesis.tex").write_text("years of work")
    assert machines("setup_nfs", *machines.nfs) == 11
    assert f"{machines.mount} is not empty: mounting there would hide" in capsys.readouterr().err
    assert (machines.mount / "thesis.tex").read_text() == "years of work"
    assert not any("mount -t" in host.called for host in machines.hosts)


@pytest.mark.long
def test_another_mounted_folder_stays(machines, capsys):
    assert machines("setup_nfs", *machines.nfs) == 0
    assert machines("setup_nfs", *machines.nfs, "--nfs-ip-address", "10.1.1.1") == 11
    output = capsys.readouterr().err
    assert f"{machines.mount} has 10.9.8.7:/ mounted, not 10.1.1.1:/" in output


def test_a_source_that_is_no_checkout_is_refused(machines, tmp_path, capsys):
    assert machines("bootstrap", "--source", str(tmp_path)) == 2
    assert "it has no tools/remote_script.sh" in capsys.readouterr().err


def test_what_git_ignores_is_not_copied():
    listed = checkout_files(ROOT)
    assert "tools/remote_script.sh" in listed
    assert not any(name.startswith((".venv/", ".git/", "runs/")) for name in listed)


def test_without_git_packages_are_copied_whatever_their_names(tmp_path):
    taken = {
        "src/atomo/workloads/datasets/mnist.py",
        "src/atomo/kernels/clusters/way.py",
        "configs/a.toml",
    }
    left = {"data/mnist/images", "clusters/lab/hosts", "cluster.yaml", "runs/x/log",
            "src/atomo/__pycache__/data.pyc", "dist/atomo.whl"}  # fmt: skip
    for name in taken | left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert {name for name in checkout_files(tmp_path) if (tmp_path / name).is_file()} == taken


@pytest.fixture
def fleet(ec2, cloud, folder, checkout, monkeypatch):
    """Returns one sshd that answers for every instance, at every address."""
    (folder / "state/test").mkdir(parents=True)
    host = Host(folder / "host", make_key(folder / "state/test/id_ed25519"))
    host.program("ssh", RECORDER)  # from the master to addresses inside a cloud that is not there
    shown = "-----BEGIN SSH HOST KEY KEYS-----\n{}-----END SSH HOST KEY KEYS-----"
    cloud.console = shown.format(host.public)
    monkeypatch.setattr(
        "atomo_cluster.ec2.hosts.ssh.MAX_CONNECTIONS", 1
    )  # they share one home folder
    options = ["--ssh-config", ssh_config(folder / "config", {"*": host.port}), "--wait", "0"]
    options += ["--ssh-username", getpass.getuser(), "--source", str(checkout)]
    yield host, options
    host.stop()


@pytest.mark.long
def test_gpu_hosts_must_see_their_gpus(ec2, fleet):
    host, options = fleet
    words = ("--worker-type", "g4dn.xlarge", "--n-workers", "1")
    assert ec2("launch", "--yes", *words).code == 0
    done = ec2("bootstrap", *options, *words)
    assert done.code == 0, done.err
    calls = host.called.splitlines()
    assert calls.count("pre_run --gpu 1") == calls.count("pre_run ") == 1


def test_a_host_without_a_fuse_is_not_used(ec2, fleet):
    host, options = fleet
    assert ec2("launch", "--yes", "--n-workers", "1").code == 0
    (host.folder / "root/etc/atomo/deadline").unlink()
    done = ec2("bootstrap", *options)
    assert done.code == 11
    assert "this host has no fuse" in done.err


@pytest.mark.long
def test_bootstrap_of_another_master_than_expected_stops(ec2, fleet):
    host, options = fleet
    launched = ec2("launch", "--yes", "--json", "--n-workers", "1").record
    done = ec2("bootstrap", *options, "--master", "198.51.100.1")
    assert done.code == 2
    address = launched[0]["public_ip"]
    assert f"198.51.100.1 is not the master of the cluster; that is {address}" in done.err
    assert not host.called
    assert ec2("bootstrap", *options, "--master", address).code == 0


def test_everything_in_one_go(ec2, cloud, fleet, checkout):
    _, options = fleet
    old = [one["id"] for one in ec2("launch", "--yes", "--json").record]
    (checkout / "run_pytorch.sh").write_text('echo "trains $*"\nexit 3\n')
    words = (*options, "--then-shutdown", "--", "--network", "LeNet")
    assert ec2("clean_launch_and_run", *words, answer="n\n").code == 13
    done = ec2("clean_launch_and_run", "--yes", *words)
    assert done.code == 3, done.err
    assert "trains --n 3 --hostfile hosts_address" in done.out
    assert "--network LeNet" in done.out
    assert done.out.count("verified: nothing in us-east-1") == 2
    assert all(id in done.out for id in old)
    assert not ec2("status", "--json").record["hosts"]


def test_one_go_rehearsed(ec2, cloud, fleet):
    _, options = fleet
    assert ec2("launch", "--yes").code == 0
    before = ec2("status", "--json").record
    done = ec2("clean_launch_and_run", "--dry-run", *options)
    assert done.code == 0, done.err
    assert "ec2.terminate_instances: EC2 would do it" in done.out
    assert "ec2.run_instances (worker): EC2 would do it" in done.out
    assert ec2("status", "--json").record == before


def test_a_terminal_shows_a_table(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    host = Named("i-1", "deeplearning-worker1", "master", "203.0.113.1", "10.0.0.1")
    with Steps([host], ["reach", "environment"], lambda text: None) as steps:
        steps.on([host], "reach", lambda one: None)
    assert "environment" in screen.getvalue()
    assert "done" in screen.getvalue()
