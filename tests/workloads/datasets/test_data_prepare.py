"""Fetching data sets: from a server on this machine, and with no network at all."""

import gzip
import hashlib
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from torchvision import datasets

from atomo.cli import main
from atomo.errors import ConfigError, DataError
from atomo.workloads.datasets import DATASETS, load_dataset
from atomo.workloads.datasets.prepare import prepare

NOWHERE = "http://absent.invalid/"  # a name that never resolves (RFC 2606)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def mirror(tmp_path, mnist_files, monkeypatch):
    """Returns a folder with the tiny MNIST, served over HTTP, and its address; its MD5s are
    expected.
    """
    folder = tmp_path / "served"
    folder.mkdir()
    resources = []
    for name, content in mnist_files.items():
        zipped = gzip.compress(content)
        (folder / f"{name}.gz").write_bytes(zipped)
        resources.append((f"{name}.gz", hashlib.md5(zipped, usedforsecurity=False).hexdigest()))
    monkeypatch.setattr(datasets.MNIST, "resources", resources)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(datasets.MNIST, "mirrors", [NOWHERE, NOWHERE])
    monkeypatch.setattr(datasets.CIFAR10, "url", NOWHERE)
    monkeypatch.setattr(datasets.CIFAR100, "url", NOWHERE)
    files = {s: [NOWHERE, *remainder] for s, (_, *remainder) in datasets.SVHN.split_list.items()}
    monkeypatch.setattr(datasets.SVHN, "split_list", files)


def test_fetches_from_the_first_mirror_that_answers_and_then_leaves_it_alone(
    mirror, monkeypatch, tmp_path
):
    monkeypatch.setattr(datasets.MNIST, "mirrors", [NOWHERE, mirror[1]])
    lines = []
    prepare(["mnist"], tmp_path / "data", lines.append)
    assert len(load_dataset("MNIST", tmp_path / "data").train) == 6
    monkeypatch.setattr(datasets.MNIST, "mirrors", [NOWHERE])
    prepare(["MNIST"], tmp_path / "data", lines.append)
    assert lines == [
        f"MNIST: downloaded to {tmp_path / 'data'} and verified",
        "MNIST: already there and sound; left alone",
    ]


@pytest.mark.slow
def test_repairs_what_a_broken_download_left(mirror, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.MNIST, "mirrors", [mirror[1]])
    prepare(["MNIST"], tmp_path, lambda line: None)
    raw = tmp_path / "MNIST/raw"
    (raw / "train-images-idx3-ubyte").write_bytes(b"cut")
    (raw / "train-images-idx3-ubyte.gz").write_bytes(b"cut")
    lines = []
    prepare(["MNIST"], tmp_path, lines.append)
    assert lines == [f"MNIST: downloaded to {tmp_path} and verified"]


@pytest.mark.slow
def test_a_download_that_is_not_the_data_set_is_refused(mirror, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.MNIST, "mirrors", [mirror[1]])
    (mirror[0] / "t10k-labels-idx1-ubyte.gz").write_bytes(b"a welcome page of the hotel")
    with pytest.raises(DataError, match=r"MNIST: the download from .* failed .*corrupted"):
        prepare(["MNIST"], tmp_path / "data", lambda line: None)


@pytest.mark.slow
def test_a_server_that_refuses_is_quoted(mirror, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.MNIST, "mirrors", [mirror[1]])
    (mirror[0] / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"MNIST: .* answered 404 File not found"):
        prepare(["MNIST"], tmp_path / "data", lambda line: None)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("MNIST", "train-images-idx3-ubyte, .* in {}/mnist"),
        ("Cifar10", "cifar-10-batches-py out of .*gz in {}, or images in {}/"),
        ("Cifar100", "cifar-100-python out of .*gz in {}"),
        ("SVHN", "train_32x32.mat and test_32x32.mat .* in {}/svhn"),
    ],
)
def test_without_a_network_it_says_so_and_what_to_do(name, files, tmp_path, offline):
    expected = f"{name}: there is no network to .*absent.invalid .*put .*{files}"
    with pytest.raises(DataError, match=expected.replace("{}", str(tmp_path))):
        prepare([name], tmp_path, lambda line: None)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("MNIST", "yann.lecun.com"),
        ("Cifar10", "www.cs.toronto.edu"),
        ("Cifar100", "www.cs.toronto.edu"),
        ("SVHN", "ufldl.stanford.edu"),
    ],
)
def test_they_come_from_where_they_were_published(name, host):
    assert host in DATASETS[name].host()


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_named(mirror, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.MNIST, "mirrors", [mirror[1]])
    (tmp_path / "MNIST").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=f"MNIST: the download from .* to {tmp_path} failed"):
        prepare(["MNIST"], tmp_path, lambda line: None)


def test_what_cannot_be_fetched_is_refused_once_all_else_is_there(tmp_path, write_tree, capsys):
    words = ["--dataset", "ImageNet", "Folder", "digits", "--data-dir", str(tmp_path)]
    assert main(["prepare", *words]) == ConfigError.exit_code
    lines = capsys.readouterr()
    assert lines.out == "Digits: already there and sound; left alone\n"
    assert lines.err.startswith("atomo prepare: ImageNet cannot be downloaded. ImageNet is not in")
    assert f"image-net.org gives out to those who register, in {tmp_path}/imagenet/" in lines.err
    assert f"Folder cannot be downloaded. Folder is not in {tmp_path}" in lines.err
    assert f"put training images in {tmp_path}/train/CLASS/" in lines.err
    write_tree(tmp_path)
    assert main(["prepare", "--dataset", "folder", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "Folder: already there and sound; left alone\n"


def test_what_was_put_there_by_hand_and_is_damaged_is_no_error_of_settings(tmp_path, write_tree):
    write_tree(tmp_path)
    shutil.rmtree(next((tmp_path / "test").iterdir()))
    with pytest.raises(DataError, match=r"^(?!.*cannot be downloaded)"):
        prepare(["Folder"], tmp_path, pytest.fail)


def test_an_unknown_name_is_refused_before_anything_is_fetched(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'SVHN'"):
        prepare(["MNIST", "svhm"], tmp_path, pytest.fail)
