import errno
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import xxhash
from support.checkpoints import CONFIG, listing, never, same, snapshot

from atomo.errors import CheckpointError
from atomo.training.checkpoints.checkpoint import (
    Snapshot,
    latest,
    load,
    save,
    steps,
    sweep,
)

# --- what is saved is what is loaded


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_roundtrip(tmp_path, workers):
    path = save(tmp_path / "new" / "run", snapshot(50, workers))
    assert path == tmp_path / "new" / "run" / "step-00000050.json"
    assert same(load(path.parent, 50, wait=never), snapshot(50, workers))
    data = {
        "step-00000050.model.safetensors",
        "step-00000050.optimizer.safetensors",
        *(f"step-00000050.worker-{rank}.safetensors" for rank in range(1, workers + 1)),
    }
    assert {*listing(path.parent)} == {path.name} | data


def test_empty_mappings_and_empty_tensors(tmp_path):
    empty = Snapshot(0, {"none": torch.empty(0, 3)}, {}, ({},), {})
    save(tmp_path, empty)
    assert same(load(tmp_path, 0), empty)


def test_strided_expanded_and_shared_tensors(tmp_path):
    base = torch.arange(24.0).reshape(2, 3, 4).requires_grad_()
    tied = {
        "a": base,
        "b": base,
        "t": base.mT,
        "part": base[:, 1],
        "wide": base[:1].expand(5, 3, 4),
    }
    tied["last"] = base.detach()[None].to(memory_format=torch.channels_last)
    save(tmp_path, replace(snapshot(1), model=tied))
    loaded = load(tmp_path, 1).model
    assert all(loaded[name].equal(tied[name]) for name in tied)
    assert all(tensor.is_contiguous() for tensor in loaded.values())
    loaded["a"].zero_()
    assert loaded["b"].any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_tensors_come_back_on_the_cpu(tmp_path):
    save(tmp_path, replace(snapshot(1), model={"w": torch.ones(3, device="cuda")}))
    assert load(tmp_path, 1).model["w"].equal(torch.ones(3))


def test_only_the_parts_asked_for_are_read(tmp_path):
    save(tmp_path, snapshot(1, workers=2))
    (tmp_path / "step-00000001.optimizer.safetensors").unlink()
    (tmp_path / "step-00000001.worker-2.safetensors").unlink()
    loaded = load(tmp_path, 1, parts=["model"])
    assert same(loaded, replace(snapshot(1), optimizer={}, workers=()))


def test_the_manifest_is_plain_json(tmp_path):
    manifest = json.loads(save(tmp_path, snapshot(3)).read_text())
    assert (manifest["format"], manifest["step"], manifest["config"]) == (1, 3, CONFIG)
    for entry in manifest["files"]:
        data = (tmp_path / entry["name"]).read_bytes()
        assert entry["bytes"] == len(data)
        assert entry["xxh3_128"] == xxhash.xxh3_128_hexdigest(data)


def test_saving_a_step_again_replaces_it_with_all_its_workers(tmp_path):
    save(tmp_path, snapshot(1, workers=3))
    save(tmp_path, snapshot(1, workers=1, entries=2))
    assert same(load(tmp_path, 1), snapshot(1, workers=1, entries=2))
    assert len(listing(tmp_path)) == 4


# --- listing and deleting


def test_steps_and_latest_count_manifests_only(tmp_path):
    assert (steps(tmp_path / "absent"), latest(tmp_path / "absent")) == ([], None)
    for step in (20, 3, 123456789):
        save(tmp_path, snapshot(step))
    for name in (
        "step-00000099.model.safetensors",  # of a run that was killed before the manifest
        ".step-00000098.json.12.tmp",
        "step-00000097.json.bak",
        "step-000000096.json",
        "step-٠٠٠٠٠٠٩٥.json",
        "config.json",
    ):
        (tmp_path / name).write_bytes(b"{}")
    assert steps(tmp_path) == [3, 20, 123456789]
    assert latest(tmp_path) == 123456789


def test_keep_deletes_the_oldest_manifest_first(tmp_path, monkeypatch):
    deleted = []
    real = Path.unlink
    for step in (1, 2, 3):
        save(tmp_path, snapshot(step))
    (tmp_path / "config.json").write_bytes(b"{}")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda p, **k: (deleted.append(p.name), real(p, **k))[1])
        save(tmp_path, snapshot(4), keep=2)
    assert steps(tmp_path) == [3, 4]
    assert len(listing(tmp_path)) == 2 * 4 + 1
    deleted = [name for name in deleted if name.startswith(("step-00000001", "step-00000002"))]
    assert [name.endswith(".json") for name in deleted] == [True, *[False] * 3] * 2


def test_keep_spares_what_was_just_saved_after_going_back(tmp_path):
    for step in (1, 8, 9):
        save(tmp_path, snapshot(step))
    save(tmp_path, snapshot(2), keep=1)
    assert steps(tmp_path) == [2, 8, 9]


def test_sweep_removes_what_a_killed_run_left(tmp_path):
    assert sweep(tmp_path / "absent") == []
    save(tmp_path, snapshot(1))
    listed = listing(tmp_path)
    leftovers = [
        ".finished.json.77.tmp",
        ".step-00000001.json.77.tmp",
        "step-00000002.model.safetensors",
        "step-00000002.worker-1.safetensors",
    ]
    for name in leftovers:
        (tmp_path / name).write_bytes(b"half")
    other_files = ["config.json", "metrics.jsonl", "notes.tmp", "step-best.model.safetensors"]
    for name in other_files:
        (tmp_path / name).write_bytes(b"whole")
    assert sweep(tmp_path) == leftovers
    assert listing(tmp_path) == sorted([*listed, *other_files])
    assert same(load(tmp_path, 1), snapshot(1))


# --- nobody sees half a checkpoint

KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from atomo.training.checkpoints.checkpoint import Snapshot, latest, load, save, steps, sweep

torch.set_num_threads(1)
folder, acknowledged, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
rng = random.Random(20)


def snapshot(step, entries):
    part = {"w": torch.full((entries,), float(step))}
    return Snapshot(step, part, part, (part, part), {"entries": entries})


def saves(entries):
    step = latest(folder) or 0
    while True:
        step += 1
        save(folder, snapshot(step, entries), keep=2)
        with acknowledged.open("a") as file:
            file.write(f"{step}\\n")


def dies_at_line(number):
    left = number

    def trace(frame, event, argument):
        nonlocal left
        if "training" not in frame.f_code.co_filename:
            return None
        left -= event == "line"
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def killed(entries, line, delay_s):
    child = os.fork()
    if child == 0:
        try:
            if line is not None:
                dies_at_line(line)
            saves(entries)
        finally:
            os._exit(9)
    if delay_s is not None:
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), status


def check():
    there = steps(folder)
    if acknowledged.exists():
        last = int(acknowledged.read_text().split()[-1])
        assert there and there[-1] >= last, (there, last)
    for step in there:
        found = load(folder, step, patience_s=0.0)
        for part in (found.model, found.optimizer, *found.workers):
            assert (part["w"] == step).all() and len(part["w"]) == found.config["entries"]
    files = len(os.listdir(folder)) if folder.exists() else 0
    sweep(folder)
    assert files == 0 or len(os.listdir(folder)) == 5 * len(there), os.listdir(folder)
    return files > 5 * len(there)


unfinished = 0
for _ in range(3 * rounds):
    killed(10, line=rng.randrange(1, 1500), delay_s=None)
    unfinished += check()
for _ in range(rounds):
    killed(100_000, line=None, delay_s=rng.uniform(0, 0.04))
    unfinished += check()
print(unfinished, latest(folder))
"""


@pytest.mark.slow
def test_a_saver_killed_anywhere_leaves_whole_checkpoints(tmp_path):
    rounds = 20
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run"), str(tmp_path / "acknowledged")]
    command.append(str(rounds))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unfinished, last = map(int, done.stdout.split())
    assert unfinished > rounds // 2  # how many the clock leaves unfinished depends on the load
    assert last > 2 * rounds


def test_everything_is_synced_before_the_manifest_appears(tmp_path, monkeypatch):
    done = []
    real = Path.replace

    def rename(path, target):
        done.append(target.name.split(".", 1)[1])
        return real(path, target)

    def fsync(descriptor):
        status = os.fstat(descriptor)
        done.append("folder" if stat.S_ISDIR(status.st_mode) else status.st_size)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", rename)
        patch.setattr(os, "fsync", fsync)
        save(tmp_path, snapshot(1))
    names = [f"{part}.safetensors" for part in ("model", "optimizer", "worker-1")] + ["json"]
    sizes = [(tmp_path / f"step-00000001.{name}").stat().st_size for name in names]
    assert done == [*sizes, *names[:3], "folder", "json", "folder"]


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO]
)
def test_a_failed_write_says_so_and_leaves_everything_as_it_was(tmp_path, monkeypatch, number):
    save(tmp_path, snapshot(1))
    before = listing(tmp_path)
    for failing_call in range(4):  # model, optimizer, worker, manifest
        for step in (1, 2):
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", fails_at(failing_call, number))
                with pytest.raises(CheckpointError) as caught:
                    save(tmp_path, snapshot(step, entries=9))
            for words in (os.strerror(number), "bytes needed", "free", "intact"):
                assert words in str(caught.value)
            assert f"step-{step:08}." in str(caught.value)
            assert listing(tmp_path) == before
            assert same(load(tmp_path, 1), snapshot(1))


def fails_at(call: int, number: int):
    calls = iter(range(1000))

    def fsync(descriptor):
        if next(calls) == call:
            raise OSError(number, os.strerror(number))

    return fsync


@pytest.mark.parametrize("call", range(5))
def test_a_failed_rename_never_leaves_a_mixture(tmp_path, monkeypatch, call):
    save(tmp_path, snapshot(1, workers=2))
    save(tmp_path, snapshot(2, workers=2))
    calls, real = iter(range(1000)), Path.replace

    def rename(path, target):
        if next(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", rename)
        with pytest.raises(CheckpointError, match="No space left"):
            save(tmp_path, snapshot(2, workers=2, entries=9))
    assert same(load(tmp_path, 1), snapshot(1, workers=2))
    assert steps(tmp_path) == [1]
    assert not [name for name in listing(tmp_path) if name.endswith(".tmp")]


@pytest.fixture
def tiny_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"may not mount a small disk here: {getattr(error, 'stderr', error)}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(tiny_disk):
    save(tiny_disk, snapshot(1))
    with pytest.raises(CheckpointError, match=r"No space left.*\d+ bytes needed, \d+ free"):
        save(tiny_disk, snapshot(2, entries=30_000))
    assert steps(tiny_disk) == [1]
    assert len(listing(tiny_disk)) == 4
    assert same(load(tiny_disk, 1), snapshot(1))
    save(tiny_disk, snapshot(3), keep=1)
    assert steps(tiny_disk) == [3]


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "run").write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot write"):
        save(tmp_path / "run", snapshot(1))
    with pytest.raises(CheckpointError, match="cannot read"):
        steps(tmp_path / "run")
