"""Special files under the name of a file: each is named in an error, and never waited for."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from atomo.core.safe_read import MAX_JSON_BYTES, read_whole
from atomo.errors import CheckpointError
from atomo.training.checkpoints.checkpoint import Snapshot, finish, finished, load, save
from atomo.training.records.json_lines import append_line, lines
from atomo.training.records.metrics import MetricsLog

MODEL = "step-00000001.model.safetensors"


def never(seconds: float) -> None:
    raise AssertionError(f"waits {seconds} s for nothing")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.getcwd()
        os.chdir(path.parent)  # the name of a socket is short
        server.bind(path.name)
        os.chdir(folder)


def endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


STRANGE: dict[Callable[[Path], None], str] = {
    pipe: "it is a pipe, not a file",
    folder: "it is a folder, not a file",
    device: "it is a symbolic link, not a file",
    loop: "it is a symbolic link, not a file",
    listener: "it is a socket, not a file",
    endless: "1099511627776 bytes",
}
NAMES: dict[str, Callable[[Path], object]] = {
    "step-00000001.json": lambda run: load(run, 1, wait=never),
    MODEL: lambda run: load(run, 1, wait=never),
    "finished.json": lambda run: finished(run, wait=never),
    "metrics.jsonl": lambda run: MetricsLog(run, 2),
    "evaluations.jsonl": lambda run: lines(run / "evaluations.jsonl", wait=never),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", STRANGE, ids=lambda make: make.__name__)
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path, make, name):
    save(tmp_path, Snapshot(1, {"w": torch.ones(3)}, {}, (), {}))
    finish(tmp_path, 1, "done")
    for name_of_log in ("evaluations.jsonl", "metrics.jsonl"):
        append_line(tmp_path / name_of_log, {"step": 1})
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises(CheckpointError, match=STRANGE[make]) as caught:
        NAMES[name](tmp_path)
    assert str(tmp_path / name) in str(caught.value)


def test_no_descriptor_is_left_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for make in STRANGE:
        path = tmp_path / make.__name__
        make(path)
        with pytest.raises(OSError, match=r"\S"):
            read_whole(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_a_manifest_vouches_for_may_be_larger_than_memory(tmp_path):
    path = save(tmp_path, Snapshot(1, {"w": torch.ones(3)}, {}, (), {}))
    size = (tmp_path / MODEL).stat().st_size
    endless(tmp_path / MODEL)
    os.truncate(tmp_path / MODEL, 2**43)
    path.write_text(path.read_text().replace(f'"bytes": {size}', f'"bytes": {2**43}', 1))
    with pytest.raises(CheckpointError, match=rf"{2**43} bytes; this machine's memory has \d+"):
        load(tmp_path, 1, wait=never)


def test_a_file_of_as_much_as_is_read_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"1234")
    assert read_whole(tmp_path / "file", 4) == b"1234"
    with pytest.raises(OSError, match="it has 4 bytes; at most 3 are read"):
        read_whole(tmp_path / "file", 3)
    assert MAX_JSON_BYTES >= 2**26


def test_a_bound_takes_no_memory_of_its_own(tmp_path):
    (tmp_path / "a").write_bytes(b"few")
    assert read_whole(tmp_path / "a", 2**62) == b"few"


def test_steps_that_no_line_of_metrics_can_have_are_dropped_like_torn_ones(tmp_path):
    strange = [b"\xff\xfe", b'{"step": 1e999}', b"[" * 10**5, b'{"step": "\xc3\x28"}', b"", b"[1]"]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([b'{"step": 1}', *strange, b'{"step": 9}']))
    with MetricsLog(tmp_path, 5):
        pass
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'
