"""The lock of a run's folder: one process at a time writes, others name its owner, and a dead owner
holds no lock.
"""

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support.harness import settings
from support.jobs import until

from atomo.errors import CheckpointError
from atomo.training.folder import lock_owner, ownership
from atomo.training.folder.lock_owner import LockOwner, this_process
from atomo.training.folder.ownership import LEASE_S, RUN, FolderGone, FolderTaken, own
from atomo.training.job.job import make_job
from atomo.training.loop.master import Master
from atomo.transports import network

HOLDS = """
import sys, threading
from pathlib import Path
from atomo.training.folder.ownership import RUN, own
with own(Path(sys.argv[1]), RUN):
    print("holds", flush=True)
    threading.Event().wait()
"""


def lock_file(folder: Path, owner: LockOwner, age_s: float = 0.0) -> Path:
    """Returns the lock file that a holder has left, or renewed so long ago."""
    path = folder / RUN.file
    path.write_bytes(owner.encoded())
    then = path.stat().st_mtime - age_s
    os.utime(path, (then, then))
    return path


def elsewhere() -> LockOwner:
    return replace(this_process(), host="h2", boot="another", job="abcd")


def test_the_second_one_is_told_who_the_first_one_is(tmp_path):
    with own(tmp_path, RUN):
        owner = json.loads((tmp_path / "run.lock").read_text())
        assert (owner["host"], owner["pid"]) == (socket.gethostname(), os.getpid())
        with pytest.raises(FolderTaken) as refusal:
            own(tmp_path, RUN)
        text = str(refusal.value)
        assert f"another run trains in {tmp_path}: process {os.getpid()} on host " in text
        assert f"(job {owner['job']}); wait for its end, end it, or give another --train" in text
        assert json.loads((tmp_path / "run.lock").read_text()) == owner
    assert not list(tmp_path.iterdir())
    own(tmp_path, RUN).__exit__(None, None, None)


def test_the_folder_of_a_process_that_was_killed_is_free_at_once(tmp_path):
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        with pytest.raises(FolderTaken, match=f"process {process.pid} on host"):
            own(tmp_path, RUN)
        process.send_signal(signal.SIGKILL)
    messages: list[str] = []
    with own(tmp_path, RUN, messages.append):
        assert f"was held by process {process.pid} on host" in messages[0]
        assert messages[0].endswith("which is gone: taken over\n")


def test_one_of_many_gets_it(tmp_path):
    gate, owners, refused = threading.Barrier(8), [], []

    def grab() -> None:
        gate.wait()
        try:
            owners.append(own(tmp_path, RUN))
        except FolderTaken:
            refused.append(1)

    threads = [threading.Thread(target=grab) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(owners), len(refused)) == (1, 7)
    owners[0].__exit__(None, None, None)


def test_a_holder_on_another_host_keeps_it_for_the_lease(tmp_path):
    before = lock_file(tmp_path, elsewhere(), LEASE_S - 20).read_bytes()
    with pytest.raises(FolderTaken, match=r"on host h2 since .*if that host is gone, .* 90 s"):
        own(tmp_path, RUN)
    assert (tmp_path / RUN.file).read_bytes() == before
    messages: list[str] = []
    lock_file(tmp_path, elsewhere(), LEASE_S + 20)
    with own(tmp_path, RUN, messages.append):
        assert "on host h2" in messages[0]


def test_without_locks_a_process_is_known_by_its_number_and_start(tmp_path, monkeypatch):
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with own(tmp_path, RUN), pytest.raises(FolderTaken, match=f"process {os.getpid()} "):
        own(tmp_path, RUN)
    lock_file(tmp_path, replace(this_process(), started=1))  # its number, of an earlier process
    messages: list[str] = []
    with own(tmp_path, RUN, messages.append):
        assert len(messages) == 1
    lock_file(tmp_path, replace(this_process(), pids="a container's"), LEASE_S - 20)
    with pytest.raises(FolderTaken):
        own(tmp_path, RUN)


def test_a_host_that_says_nothing_of_itself_goes_by_the_lease(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_owner, "BOOT", tmp_path / "nothing")
    with own(tmp_path, RUN), pytest.raises(FolderTaken, match="if that host is gone"):
        own(tmp_path, RUN)
    lock_file(tmp_path, this_process(), LEASE_S + 20)
    with own(tmp_path, RUN, lambda text: None):
        pass


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 9999, b"{}", b'{"pid": "x"}', b"\xff\xfe"])
def test_a_lock_file_that_names_nobody_holds_nothing(text, tmp_path):
    (tmp_path / RUN.file).write_bytes(text)
    with own(tmp_path, RUN, pytest.fail):
        assert lock_owner.parse((tmp_path / RUN.file).read_bytes())


def test_it_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "RENEWAL_S", 0.01)
    with own(tmp_path, RUN):
        path = tmp_path / RUN.file
        os.utime(path, (1.0, 1.0))
        until(lambda: path.stat().st_mtime > 1.0, "a renewal")


def test_who_lost_the_folder_finds_out_and_leaves_it_alone(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with own(folder, RUN) as owner:
        owner.check()
        (folder / RUN.file).unlink()
        lock_file(folder, elsewhere())
        with pytest.raises(FolderTaken, match=r"no longer this process's: process .* on host h2"):
            owner.check()
    assert (folder / RUN.file).exists()  # which is another's
    folder.rename(tmp_path / "away")
    (tmp_path / "away" / RUN.file).unlink()


def test_a_folder_that_was_moved_is_no_longer_ours_unless_we_moved_it(tmp_path):
    (tmp_path / "x").mkdir()
    with own(tmp_path / "x", RUN) as owner:
        (tmp_path / "x").rename(tmp_path / "y")
        with pytest.raises(FolderGone, match="it was moved away"):
            owner.check()
        assert not (tmp_path / "x").exists()
        owner.follow(tmp_path / "y")
        owner.check()
    assert not list((tmp_path / "y").iterdir())


def test_a_folder_that_was_removed_is_made_anew_and_held(tmp_path):
    folder = tmp_path / "x"
    folder.mkdir()
    with own(folder, RUN) as owner:
        shutil.rmtree(folder)
        owner.check()
        with pytest.raises(FolderTaken):
            own(folder, RUN)
        (folder / RUN.file).unlink()  # by hand, say
        owner.check()
        assert lock_owner.parse((folder / RUN.file).read_bytes()) == owner._me
    assert not list(folder.iterdir())


def test_a_folder_whose_file_system_is_not_mounted_is_left_alone(tmp_path, monkeypatch):
    folder = tmp_path / "x"
    folder.mkdir()
    with own(folder, RUN) as owner:
        shutil.rmtree(folder)
        monkeypatch.setattr(owner, "_disk", owner._disk + 1)
        with pytest.raises(FolderGone, match="is on another file system than it was"):
            owner.check()
        assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot write .*run\.lock: Not a directory"):
        own(tmp_path / "file", RUN)


def test_a_master_leaves_the_folder_of_another_run_alone(tmp_path):
    chosen = settings(tmp_path, n=2, network="FC")
    (tmp_path / ".half-a-checkpoint.tmp").touch()
    master = Master(make_job(chosen, 2), network(2)[0], pytest.fail, lambda: False)
    with own(tmp_path, RUN):
        before = {path.name for path in tmp_path.iterdir()}
        with pytest.raises(FolderTaken):
            master.run()
        assert {path.name for path in tmp_path.iterdir()} == before
