"""Checkpoints that are damaged, foreign, late or stale, and the mark of a finished run."""

import errno
import json
import os
import random

import pytest
import xxhash
from support.checkpoints import failing, listing, never, same, snapshot

from atomo.errors import CheckpointError
from atomo.training.checkpoints.checkpoint import (
    CheckpointGone,
    Finished,
    finish,
    finished,
    load,
    save,
    steps,
    unfinish,
)
from atomo.training.folder import run_folder

# --- what was damaged on the way, or made by a stranger

MODEL = "step-00000001.model.safetensors"


def test_truncated_longer_and_foreign_files_are_refused(tmp_path):
    save(tmp_path, snapshot(1))
    path = tmp_path / MODEL
    data = path.read_bytes()
    for bad in (b"", data[:-1], data + b"\0"):
        path.write_bytes(bad)
        with pytest.raises(CheckpointError, match=f"{MODEL} has {len(bad)} bytes.*{len(data)}"):
            load(tmp_path, 1, wait=never)
    path.write_bytes(bytes(len(data)))
    with pytest.raises(CheckpointError, match=f"{MODEL} is damaged"):
        load(tmp_path, 1, wait=never)


def test_every_flipped_bit_of_the_data_is_found(tmp_path):
    save(tmp_path, snapshot(1))
    path, rng = tmp_path / MODEL, random.Random(3)
    data = path.read_bytes()
    for _ in range(100):
        bad = bytearray(data)
        bad[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(CheckpointError, match="damaged"):
            load(tmp_path, 1, wait=never)


@pytest.mark.slow
def test_a_mutated_manifest_never_escapes_as_another_error(tmp_path):
    path, rng = save(tmp_path, snapshot(1)), random.Random(4)
    data, refused = path.read_bytes(), 0
    for _ in range(500):
        bad = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(bad))
            bad[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        path.write_bytes(bad)
        try:
            load(tmp_path, 1, patience_s=0.0)
        except CheckpointError:
            refused += 1
    assert refused > 300


def entry(name: object = MODEL, size: object = 1, digest: object = "0") -> dict[str, object]:
    return {"name": name, "bytes": size, "xxh3_128": digest}


OPTIMIZER = entry("step-00000001.optimizer.safetensors")
WHOLE = {"format": 1, "step": 1, "config": {}, "files": [entry(), OPTIMIZER]}


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (b"", "not the manifest"),
        (b"\xff\xfe", "not the manifest"),
        (b"[" * 100_000, "not the manifest"),
        (b'{"format": 1, "step": ' + b"9" * 5000, "not the manifest"),
        ([], "not the manifest"),
        ({**WHOLE, "format": 2}, "format 2; this version reads 1"),
        ({**WHOLE, "format": "1"}, "not the manifest"),
        ({**WHOLE, "step": "1"}, "not the manifest"),
        ({**WHOLE, "step": 2}, "manifest of step 2"),
        ({**WHOLE, "config": []}, "not the manifest"),
        ({**WHOLE, "config": {"lr": [0.1]}}, "'lr' is neither text nor a number"),
        ({**WHOLE, "config": {"lr": None}}, "'lr' is neither text nor a number"),
        ({**WHOLE, "files": {}}, "not the manifest"),
        ({**WHOLE, "files": []}, "0 files"),
        ({**WHOLE, "files": [entry()]}, "1 files"),
        ({**WHOLE, "files": [OPTIMIZER, entry()]}, "where 'step-00000001.model"),
        ({**WHOLE, "files": [entry("/etc/passwd"), OPTIMIZER]}, "'/etc/passwd' where"),
        ({**WHOLE, "files": [entry(f"../{MODEL}"), OPTIMIZER]}, "where 'step-00000001.model"),
        ({**WHOLE, "files": [entry(f"./{MODEL}"), OPTIMIZER]}, "where 'step-00000001.model"),
        ({**WHOLE, "files": [entry(size="1"), OPTIMIZER]}, "not an entry"),
        ({**WHOLE, "files": [entry(size=1.5), OPTIMIZER]}, "not an entry"),
        ({**WHOLE, "files": [entry(digest=0), OPTIMIZER]}, "not an entry"),
        ({**WHOLE, "files": ["x", OPTIMIZER]}, "not an entry"),
        ({**WHOLE, "files": [entry(size=10**30), OPTIMIZER]}, "its manifest says 10{30}"),
        ({**WHOLE, "files": [entry(size=-1), OPTIMIZER]}, "its manifest says -1"),
    ],
)
def test_a_hostile_manifest_is_refused(tmp_path, manifest, message):
    path = save(tmp_path, snapshot(1))
    path.write_bytes(manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode())
    with pytest.raises(CheckpointError, match=message) as caught:
        load(tmp_path, 1, wait=never)
    assert not isinstance(caught.value, CheckpointGone)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"not tensors", b"\xff" * 8 + b"{}", (8).to_bytes(8, "little") + b'{"w": 1}'],
)
def test_a_file_that_its_manifest_vouches_for_may_still_be_no_safetensors(tmp_path, data):
    path = save(tmp_path, snapshot(1))
    (tmp_path / MODEL).write_bytes(data)
    forged = entry(MODEL, len(data), xxhash.xxh3_128_hexdigest(data))
    path.write_text(json.dumps({**WHOLE, "files": [forged, OPTIMIZER]}))
    with pytest.raises(CheckpointError, match=f"{MODEL} is not a safetensors file"):
        load(tmp_path, 1, parts=["model"])


# --- NFS


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
@pytest.mark.parametrize("match", ["step-00000001.json", MODEL])
def test_a_file_that_is_late_or_stale_is_opened_again(tmp_path, monkeypatch, number, match):
    save(tmp_path, snapshot(1))
    waits = []
    with failing(monkeypatch, os, "open", number, times=3, match=match):
        assert same(load(tmp_path, 1, wait=waits.append), snapshot(1))
    assert waits == [run_folder.RETRY_S] * 3


def test_a_checkpoint_may_appear_while_one_waits_for_it(tmp_path):
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            save(tmp_path, snapshot(1))

    assert same(load(tmp_path, 1, wait=wait), snapshot(1))


def test_gone_is_told_from_unreadable_after_the_patience(tmp_path, monkeypatch):
    waits = []
    save(tmp_path, snapshot(3))
    with pytest.raises(CheckpointGone, match=r"no checkpoint of step 1; it has \[3\]"):
        load(tmp_path, 1, patience_s=2.0, wait=waits.append)
    assert sum(waits) == 2.0
    with (
        failing(monkeypatch, os, "open", errno.ESTALE, times=99, match="step-00000003.m"),
        pytest.raises(CheckpointError, match=r"cannot read .*step-00000003.model") as caught,
    ):
        load(tmp_path, 3, patience_s=2.0, wait=waits.append)
    assert not isinstance(caught.value, CheckpointGone)
    with (
        failing(monkeypatch, os, "open", errno.EIO, match="step-00000003.m"),
        pytest.raises(CheckpointError, match="Input/output error"),
    ):
        load(tmp_path, 3, wait=never)


def test_a_stale_listing_is_asked_for_again_and_never_taken_for_an_empty_one(tmp_path, monkeypatch):
    save(tmp_path, snapshot(1))
    waits = []
    with failing(monkeypatch, os, "listdir", errno.ESTALE, times=2):
        assert steps(tmp_path, wait=waits.append) == [1]
    assert len(waits) == 2
    with (
        failing(monkeypatch, os, "listdir", errno.ESTALE, times=99),
        pytest.raises(CheckpointError, match="cannot read"),
    ):
        steps(tmp_path, patience_s=1.0, wait=waits.append)


# --- the mark of a finished run


def test_finished_and_not(tmp_path):
    assert finished(tmp_path / "absent") is None
    finish(tmp_path, 700, "reached max_steps")
    assert finished(tmp_path) == Finished(700, "reached max_steps")
    assert json.loads((tmp_path / "finished.json").read_text()) == {
        "step": 700,
        "reason": "reached max_steps",
    }
    finish(tmp_path, 900, "again")
    assert finished(tmp_path) == Finished(900, "again")
    unfinish(tmp_path)
    unfinish(tmp_path)
    assert finished(tmp_path) is None
    assert listing(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"step": "7", "reason": "x"}'])
def test_a_foreign_mark_is_refused(tmp_path, text):
    (tmp_path / "finished.json").write_text(text)
    with pytest.raises(CheckpointError, match="is not the mark"):
        finished(tmp_path)
