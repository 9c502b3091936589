"""The programs that run on the hosts: the fuse, and the watch for EC2's two-minute notice."""

import os
import pwd
import shutil
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from atomo_cluster.ec2.hosts.fuses import local_deadline, pause_script
from atomo_cluster.ec2.hosts.scripts import SCRIPTS
from atomo_cluster.ec2.hosts.user_data import LARGEST, user_data
from atomo_cluster.ec2.settings.cluster import Cluster

pytestmark = pytest.mark.slow

TOLD = "atomo: the fuse of this cluster"
HOST = SCRIPTS
RECORDER = '#!/bin/bash\necho "$(basename "$0") $*" >>"$RECORD"\n'


@pytest.fixture
def machine(tmp_path):
    """Returns a function that runs a script, with harmless stand-ins for the commands that it
    calls, and returns those calls.
    """
    bin, record = tmp_path / "bin", tmp_path / "record"
    bin.mkdir()
    for name in ("shutdown", "systemctl"):
        (bin / name).write_text(RECORDER)
        (bin / name).chmod(0o755)

    def run(script, *words, **environment):
        record.write_text("")
        around = {
            **os.environ,
            "PATH": f"{bin}:{os.environ['PATH']}",
            "RECORD": str(record),
            "ATOMO_ROOT": str(tmp_path / "root"),
            "HOME": str(tmp_path),
        }
        around |= environment
        subprocess.run(["bash", script, *words], env=around, check=True, timeout=60)
        return record.read_text().splitlines()

    return run


def test_the_fuse_comes_first_and_survives_a_restart(machine, tmp_path):
    script = tmp_path / "user-data"
    script.write_text(user_data(Cluster(max_hours=1.51), spot=False))
    assert script.read_text().splitlines()[:2] == [
        "#!/bin/bash",
        'shutdown -h +91 "atomo: the fuse of this cluster"',
    ]
    first = machine(script)
    assert first == ["shutdown -h +91 atomo: the fuse of this cluster"] * 2
    deadline = int((tmp_path / "root/etc/atomo/deadline").read_text())
    assert deadline == pytest.approx(time.time() + 91 * 60, abs=60)
    boot = tmp_path / "root/var/lib/cloud/scripts/per-boot/atomo-fuse"
    assert os.access(boot, os.X_OK)
    fuse = tmp_path / "root/usr/local/lib/atomo/fuse.sh"
    (tmp_path / "root/etc/atomo/deadline").write_text(str(int(time.time()) + 630))
    assert machine(fuse, "91") == ["shutdown -h +10 atomo: the fuse of this cluster"]
    (tmp_path / "root/etc/atomo/deadline").write_text("1000")
    assert machine(fuse, "91") == ["shutdown -h +0 atomo: the fuse of this cluster"]


def test_the_fuse_can_be_moved_and_stays_moved(machine, tmp_path):
    script = tmp_path / "user-data"
    script.write_text(user_data(Cluster(max_hours=1.0), spot=False))
    with pytest.raises(subprocess.CalledProcessError):
        machine(HOST / "extend.sh", "99")  # there is no fuse yet, and none is made
    machine(script)
    until = int(time.time()) + 5 * 3600 + 30
    assert machine(HOST / "extend.sh", str(until)) == [
        "shutdown -h +300 atomo: the fuse of this cluster"
    ]
    boot = tmp_path / "root/usr/local/lib/atomo/fuse.sh"
    assert machine(boot, "60") == ["shutdown -h +300 atomo: the fuse of this cluster"]


def test_a_fuse_whose_shutdown_cannot_be_planned_stays(machine, tmp_path):
    script = tmp_path / "user-data"
    script.write_text(user_data(Cluster(max_hours=1.0), spot=False))
    machine(script)
    deadline = tmp_path / "root/etc/atomo/deadline"
    before = deadline.read_text()
    (tmp_path / "bin/shutdown").write_text("#!/bin/bash\nexit 3\n")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        machine(HOST / "extend.sh", str(int(time.time()) + 5 * 3600))
    assert failure.value.returncode == 3
    assert deadline.read_text() == before
    assert local_deadline(deadline) == datetime.fromtimestamp(int(before), timezone.utc)
    assert local_deadline(tmp_path / "nowhere") is None


def test_the_fuse_waits_while_a_host_is_stopped(machine, tmp_path):
    folder, pause = tmp_path / "root/etc/atomo", tmp_path / "pause"
    pause.write_bytes(pause_script())
    with pytest.raises(subprocess.CalledProcessError):
        machine(pause, "pause")  # there is no fuse
    user = tmp_path / "user-data"
    user.write_text(user_data(Cluster(max_hours=1.0), spot=False))
    machine(user)
    fuse = tmp_path / "root/usr/local/lib/atomo/fuse.sh"
    fuse.write_text("of an older launch")
    machine(pause, "pause")
    assert int((folder / "paused").read_text()) == pytest.approx(3600, abs=60)
    (folder / "deadline").write_text("1000")  # it has been stopped for long
    (folder / "paused").write_text("1830")
    assert machine(fuse, "60") == ["shutdown -h +30 atomo: the fuse of this cluster"]
    assert machine(fuse, "60")[0] in [f"shutdown -h +{left} {TOLD}" for left in (29, 30)]
    machine(pause, "pause")
    machine(pause, "go_on")  # it was not stopped after all
    (folder / "deadline").write_text(str(int(time.time()) + 200))
    assert machine(fuse, "60") == [f"shutdown -h +3 {TOLD}"]
    with pytest.raises(subprocess.CalledProcessError):
        machine(pause, "pause")  # it would end before any signal
    assert not (folder / "paused").exists()


def test_a_host_of_an_image_has_a_fuse_of_its_own(machine, tmp_path):
    root = tmp_path / "root"
    folder, id = root / "etc/atomo", root / "var/lib/cloud/data/instance-id"
    id.parent.mkdir(parents=True)
    id.write_text("i-1\n")
    user = tmp_path / "user-data"
    user.write_text(user_data(Cluster(max_hours=8.0), spot=False))
    machine(user)
    (folder / "deadline").write_text("1000")  # of the host that was the image's source
    fuse = root / "usr/local/lib/atomo/fuse.sh"
    assert machine(fuse, "480") == [f"shutdown -h +0 {TOLD}"]
    id.write_text("i-2\n")  # cloud-init runs scripts of every boot before those of the first
    assert machine(fuse, "480") == [f"shutdown -h +480 {TOLD}"]
    user.write_text(user_data(Cluster(max_hours=1.0), spot=False))
    assert machine(user) == [f"shutdown -h +60 {TOLD}"] * 2


def test_what_is_of_a_cluster_is_in_no_image(machine, tmp_path):
    ssh, checkout = tmp_path / ".ssh", tmp_path / "atomo"
    with pytest.raises(subprocess.CalledProcessError):
        machine(HOST / "scrub.sh", "atomo")  # nothing is installed
    for path, text in {
        ssh / "atomo_cluster": "key",
        ssh / "atomo_cluster.pub": "ssh-ed25519 AAAA atomo-cluster\n",
        ssh / "authorized_keys": "ssh-ed25519 BBBB me\nssh-ed25519 AAAA atomo-cluster\n",
        tmp_path / ".atomo/master": "10.0.0.1",
        checkout / ".venv/bin/python": "",
        checkout / "hosts_address": "10.0.0.1",
        checkout / "jobs/1/log": "",
        checkout / "data/set": "kept",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (checkout / ".venv/bin/python").chmod(0o755)
    machine(HOST / "scrub.sh", "atomo")
    assert (ssh / "authorized_keys").read_text() == "ssh-ed25519 BBBB me\n"
    assert [path.name for path in ssh.iterdir()] == ["authorized_keys"]
    assert sorted(path.name for path in checkout.iterdir()) == [".venv", "data"]
    assert not (tmp_path / ".atomo").exists()


def test_spot_hosts_watch_for_the_notice(machine, tmp_path):
    script = tmp_path / "user-data"
    script.write_text(user_data(Cluster(ssh_username="me"), spot=True))
    called = machine(script)
    assert "systemctl enable --now atomo-spot.service" in called
    unit = (tmp_path / "root/etc/systemd/system/atomo-spot.service").read_text()
    assert "ExecStart=/bin/bash /usr/local/lib/atomo/spot_watch.sh me" in unit
    for name in ("spot_watch.sh", "leave_job.sh"):
        installed = tmp_path / "root/usr/local/lib/atomo" / name
        assert installed.read_text() == (HOST / name).read_text()


def test_user_data_fits():
    assert len(user_data(Cluster(), spot=True).encode()) < LARGEST


class Metadata(BaseHTTPRequestHandler):
    """EC2's metadata service: no notice twice, then one, for those with a token."""

    asked = 0

    def do_PUT(self):
        self.reply(200, b"a-token")

    def do_GET(self):
        assert self.path == "/latest/meta-data/spot/instance-action"
        if self.headers.get("X-aws-ec2-metadata-token") != "a-token":
            self.reply(401, b"")
            return
        Metadata.asked += 1
        notice = b'{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'
        self.reply(*((404, b"") if Metadata.asked < 3 else (200, notice)))

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def metadata():
    """Returns its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


# Prints that it runs; exits with 0 after a signal, as `atomo train` does.
JOB = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("on", flush=True)
signal.pause()
"""


@pytest.fixture
def job():
    """Returns a process whose command line nobody else has, with what finds it."""
    name = f"-m atomo-test-{os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", JOB, name], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        yield process, name.replace("-m", "[-]m")
        process.kill()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing; hosts of EC2 have it")
def test_the_notice_ends_the_job_kindly(machine, metadata, job):
    process, pattern = job
    user = pwd.getpwuid(os.getuid()).pw_name
    around = {"ATOMO_METADATA": metadata, "ATOMO_POLL_S": "0.01", "ATOMO_JOB": pattern}
    machine(HOST / "spot_watch.sh", user, **around)
    assert process.wait(30) == 7
    assert Metadata.asked == 3
