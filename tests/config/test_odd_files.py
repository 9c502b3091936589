"""Files that a person names, hostile or odd: an error of ours with their path, and never more."""

import gzip
import io
import json
import os
import wave
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from planning.probe.test_probe_file import FOUND, SUBJECT
from safetensors.torch import save_file
from support.absurd import damaged, documents
from workloads.test_detection_files import GOOD

from atomo.cli import main
from atomo.cli.explanation.run import read_steps
from atomo.cli.gradient_file import load_gradient
from atomo.config.file import read_settings
from atomo.core.safe_read import read_pipe, read_text
from atomo.errors import AtomoError, CheckpointError, ConfigError, DataError
from atomo.launch.display.summary import nearby
from atomo.launch.jobs.hosts import read_hosts
from atomo.launch.studies.sweep_results import read_trial, read_trials, results_table
from atomo.planning.probe import read_probe, write_probe
from atomo.workloads.audio.clips import read_genders
from atomo.workloads.audio.prompts import read_prompts
from atomo.workloads.audio.waves import coefficients
from atomo.workloads.classes import TOP1
from atomo.workloads.datasets.idx import read_idx
from atomo.workloads.datasets.photographs.files import decode_image, header_size
from atomo.workloads.detection.annotations import read_annotations
from atomo.workloads.detection.pretrained import read as read_body
from atomo.workloads.labels.repository import read_samples, read_split_file
from atomo.workloads.language.corpus import read_corpus
from atomo.workloads.models.pretrained.npz import read_npz
from atomo.workloads.models.pretrained.tensor_files import read_tensors
from atomo.workloads.text.tokens import token_splitter
from atomo.workloads.text.vectors import read_vectors

MUTANTS = 60  # of each file
TABLE = "2 3 4\n0,3 0:1.5 2:2\n 1:0.25\n"
VECTORS = "2 3\nword 0.5 1 2\nother 1 2 3e1\n"
SETTINGS = 'network = "ResNet20"\nlr = 0.1\nn = 3\nnesterov = true\nlr_milestones = "1,2"\n'
STEP = '{"step": 3, "loss": 0.5, "accuracy": 0.75, "step_s": 0.125, "up_bytes": 10}\n'
TRIAL = (
    '{"name": "lr=1", "settings": "lr = 1", "steps": 3, "loss": 0.5, "accuracy": 0.75, '
    '"step_s": 0.125, "sent_bytes": 10.0, "tested": 0.5}\n'
)
TOKENISER = (
    '{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], '
    '"normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, '
    '"decoder": null, "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1}, '
    '"unk_token": "<unk>"}}'
)
HOSTS = "10.0.0.1\nworker-1.example slots=4 # four\nuser@other\n"


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


def idx(path: Path) -> None:
    path.write_bytes(b"\0\0\x08\x02" + (2).to_bytes(4, "big") * 2 + bytes(4))


def packed_idx(path: Path) -> None:
    idx(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


def arrays(path: Path) -> None:
    np.savez(path, **{"a/kernel": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)})


def packed_arrays(path: Path) -> None:
    np.savez_compressed(path, a=np.ones((2, 3), np.float32))


def tensors(path: Path) -> None:
    save_file({"a": torch.ones(2, 3), "b": torch.ones(3)}, path)


def sound(path: Path) -> None:
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(bytes(2_000))


def image(path: Path) -> None:
    noise = np.random.default_rng(1).integers(256, size=(20, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def corpus(path: Path) -> object:
    (path.parent / "test.txt").write_text("a b\n")
    return read_corpus(path.parent, str.split, 1)


def swept(path: Path) -> object:
    return results_table([*read_trials(path.parent).values()], TOP1)


def trial_of(path: Path) -> object:
    read_steps(path.parent)
    return results_table([read_trial("lr=1", "", path.parent, False, TOP1)], TOP1)


def evaluated(path: Path) -> object:
    (path.parent / "metrics.jsonl").write_text(STEP)
    return trial_of(path)


def tokenised(path: Path) -> object:
    pytest.importorskip("tokenizers")
    return token_splitter(path)("a b")


def both(path: Path) -> object:
    return header_size(str(path)), decode_image(str(path))


Read = Callable[[Path], object]
FAMILIES: dict[str, tuple[Callable[[Path], None], Read]] = {
    "a.toml": (text(SETTINGS), lambda path: read_settings([path])),
    "hosts": (text(HOSTS), read_hosts),
    "idx": (idx, lambda path: read_idx(path, 2)),
    "idx.gz": (packed_idx, lambda path: read_idx(path, 2)),
    "weights.npz": (arrays, lambda path: read_tensors(path, "--weights", read_npz, "")),
    "gradient.npz": (packed_arrays, lambda path: load_gradient(path, "--gradient")),
    "gradient.safetensors": (tensors, lambda path: load_gradient(path, "--gradient")),
    "body.safetensors": (tensors, read_body),
    "sound.wav": (sound, lambda path: coefficients(path, 16_000)),
    "image.png": (image, both),
    "image.jpg": (image, both),
    "genders.txt": (text("one m\ntwo f\n"), read_genders),
    "prompts.txt": (text("S_1 a word\n"), lambda path: read_prompts(path.parent)),
    "table.txt": (text(TABLE), read_samples),
    "split.txt": (text("1 2\n2 1\n"), lambda path: read_split_file(path, 2)),
    "train.txt": (text("a b\nb c\n"), corpus),
    "vectors.txt": (text(VECTORS), lambda path: read_vectors(path, {"word"})),
    "instances.json": (text(json.dumps(GOOD)), read_annotations),
    "probe.json": (lambda path: write_probe(path, SUBJECT, FOUND), read_probe),
    "sweep.jsonl": (text(TRIAL), swept),
    "metrics.jsonl": (text(STEP), trial_of),
    "evaluations.jsonl": (text('{"step": 3, "top1": 0.5}\n'), evaluated),
    "tokens.json": (text(TOKENISER), tokenised),
}
DOCUMENTS = tuple(name for name in FAMILIES if name.endswith((".json", ".jsonl")))


def read_or_refuse(read: Read, path: Path, content: bytes) -> None:
    """Reads, or raises an error of ours that names the file."""
    path.write_bytes(content)
    try:
        read(path)
    except AtomoError as error:
        assert path.name in str(error) or path.parent.name in str(error)  # noqa: PT017  # if any
        assert len(str(error)) < 2000  # noqa: PT017
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__} for {content[:500]!r}") from error


@pytest.mark.filterwarnings("ignore")  # of Pillow and NumPy: a person reads them, or nobody
@pytest.mark.parametrize("name", FAMILIES)
def test_damaged_bytes_are_read_or_refused(name, tmp_path):
    make, read = FAMILIES[name]
    path = tmp_path / name
    make(path)
    good = path.read_bytes()
    read(path)
    for content in damaged(good, MUTANTS):
        read_or_refuse(read, path, content)


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_absurd_values_are_read_or_refused(name, tmp_path):
    make, read = FAMILIES[name]
    path = tmp_path / name
    make(path)
    for content in documents(json.loads(path.read_bytes())):
        read_or_refuse(read, path, content + b"\n")  # a line without its end is cut off


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**43)


@pytest.mark.parametrize("make", [zeros, os.mkfifo, sparse], ids=["device", "pipe", "terabytes"])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_no_file_or_has_no_end_is_not_read(name, make, tmp_path, monkeypatch):
    monkeypatch.setattr("atomo.core.safe_read.PIPE_S", 0.01)
    path = tmp_path / name
    if make is sparse and name in ("sound.wav", "idx.gz", "image.png", "image.jpg"):
        make(path)
    elif make is sparse and name.endswith(".txt"):
        return  # a line of it is too long after 1 GiB: the next test has the bound
    else:
        make(path)
    with pytest.raises((CheckpointError, ConfigError, DataError)) as error:
        FAMILIES[name][1](path)
    assert name in str(error.value)


def test_a_line_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr("atomo.workloads.lines.LONGEST", 10)
    (tmp_path / "a.txt").write_text("one m\n" + "x" * 11)
    with pytest.raises(DataError, match=r"a\.txt, line 2: more than 10 bytes"):
        read_genders(tmp_path / "a.txt")


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    "content",
    [
        f"n = {DIGITS}", f"lr = {DIGITS}", f"lr = {DIGITS[:400]}", f"n = 0x{DIGITS}",
        "n = " + "[" * 50_000, "n = " + "{a=" * 50_000, ".".join(["a"] * 5_000) + " = 1",
        f"n = [0x{DIGITS}]", f'hierarchical = "{DIGITS}"', f'fusion = "count:{DIGITS}"',
        f'code = "svd(rank={DIGITS})"', f'n = "{DIGITS}"', "n = 1979-05-27", f"n = {DIGITS}e9",
    ],
)  # fmt: skip
def test_odd_settings_are_refused(content, tmp_path, capsys):
    path = tmp_path / "a.toml"
    path.write_text(content)
    assert main(["train", "--config", str(path), "--evaluator", "none"]) == 2
    assert capsys.readouterr().err.startswith("atomo train: ")


def test_endless_settings_are_refused(capsys):
    assert main(["train", "--config", "/dev/zero"]) == 2
    told = "atomo train: --config /dev/zero: it is a device, not a file\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("line", [f"host slots={DIGITS}", "x" * 10**6])
def test_odd_hosts_are_refused(line, tmp_path):
    (tmp_path / "hosts").write_text(line)
    with pytest.raises(ConfigError, match=r"hosts:1: .* is not a host") as error:
        read_hosts(tmp_path / "hosts")
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("value", ["0^-1..0^2", "9999999^100..9999999^200", f"{DIGITS}^1..2^2"])
def test_odd_ranges_are_refused(value, capsys):
    assert main(["sweep", "--lr", value]) == 2
    assert "atomo sweep: " in capsys.readouterr().err


def zipped(method: int, name: str = "a.npy") -> bytes:
    """Returns an archive whose file is said to be compressed in some way."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        content = io.BytesIO()
        np.save(content, np.ones(3, np.float32))
        archive.writestr(name, content.getvalue())
    data = bytearray(out.getvalue())
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        start = data.index(mark) + place
        data[start : start + 2] = method.to_bytes(2, "little")
    return bytes(data)


@pytest.mark.parametrize("method", [1, 9, 12, 14, 93, 97, 99])
def test_an_archive_of_unknown_compression_is_refused(method, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(zipped(method))
    with pytest.raises(DataError, match=r"a\.npz( is no \.npz file of numbers)?: \S"):
        load_gradient(path, "--gradient")


def test_an_archive_of_more_than_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("atomo.workloads.models.pretrained.npz.memory_bytes", lambda: 100)
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.zeros(1000))
    with pytest.raises(DataError, match=r"a\.npz unpacks to 8\d+ bytes; .* memory has 100"):
        load_gradient(path, "--gradient")


@pytest.mark.slow
def test_an_archive_of_a_bomb_is_unpacked_no_further_than_it_says(tmp_path):
    path = tmp_path / "idx.gz"
    idx(path)
    path.write_bytes(gzip.compress(path.read_bytes() + bytes(10**8)))
    with pytest.raises(DataError, match=r"holds 5 entries; its header says \[2, 2\]"):
        read_idx(path, 2)


@pytest.mark.parametrize("field", [4, 16, 40])
@pytest.mark.parametrize("size", [0, 1, 2**31, 2**32 - 1])
def test_a_wave_whose_chunks_lie_is_refused_or_read_to_its_end(field, size, tmp_path):
    path = tmp_path / "a.wav"
    sound(path)
    data = bytearray(path.read_bytes())
    data[field : field + 4] = size.to_bytes(4, "little")
    read_or_refuse(lambda path: coefficients(path, 16_000), path, bytes(data))


@pytest.mark.parametrize("first", [f"2 {DIGITS}", f"{DIGITS} 2"])
def test_vectors_of_absurd_numbers_are_refused(first, tmp_path):
    (tmp_path / "v.txt").write_text(f"{first}\na 1 2\n")
    with pytest.raises(DataError, match=r"v\.txt, line 1: .* expected two whole numbers") as error:
        read_vectors(tmp_path / "v.txt", {"a"})
    assert len(str(error.value)) < 500


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Returns a working folder that is removed."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()


COMMANDS = (
    ["train", "--evaluator", "none"], ["sweep", "--lr", "1,2"], ["throughput"],
    ["prepare", "MNIST"], ["explain", "--probe", "a.json"],
)  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_removed_working_folder_is_told(words, nowhere, capsys):
    assert main(words) in (2, 3)
    told = capsys.readouterr().err
    assert told.startswith(f"atomo {words[0]}: "), told


def test_a_closing_table_needs_no_working_folder(nowhere):
    assert nearby(Path("/run")) == Path("/run")


@pytest.mark.parametrize("name", ["a.toml", "hosts"])
def test_what_a_shell_puts_into_a_pipe_is_read_within_bounds(name, tmp_path):
    """`--config <(command)` names a pipe; host files are read again before each try of a job."""
    make, read = FAMILIES[name]
    make(tmp_path / name)
    with piped((tmp_path / name).read_bytes()) as path:
        assert read(path) == read(path) == read(tmp_path / name)
    with piped(b"") as path, suppress(ConfigError):  # no host
        read(path)
    with piped(b"# " * 2**14) as path, pytest.raises(OSError, match="more than 9 bytes"):
        read_text(path, 9)


@contextmanager
def piped(content: bytes) -> Iterator[Path]:
    """Yields the path of a pipe with this content and no writer."""
    source, sink = os.pipe()
    read_pipe.cache_clear()  # of another pipe with this number
    try:
        os.write(sink, content)
        os.close(sink)
        yield Path(f"/dev/fd/{source}")
    finally:
        os.close(source)
