"""ImageNet's archives become the folders that are read."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from atomo.errors import ConfigError, DataError
from atomo.workloads.datasets import load_dataset
from atomo.workloads.datasets.photographs.imagenet_archives import (
    ARCHIVES,
    CLASSES,
    KIT,
    TRAIN,
    TRUTH,
    VAL,
)
from atomo.workloads.datasets.prepare import prepare

FOLDERS = ("n02", "n01")  # of classes 1 and 2: numbers do not follow names
LABELS = (2, 1, 1)


def jpeg(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (12, 10), (value, value, value)).save(file, "JPEG")
    return file.getvalue()


def tar(path: Path, files: dict[str, bytes], mode: str = "w") -> bytes:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path.read_bytes()


def kit(path: Path, labels: tuple[int, ...] = LABELS, folders: tuple[str, ...] = FOLDERS) -> None:
    kinds = [("ILSVRC2012_ID", int), ("WNID", object), ("words", object)]
    rows = np.array([(i, name, "word") for i, name in enumerate(folders, 1)], dtype=kinds)
    matlab = io.BytesIO()
    savemat(matlab, {"synsets": rows})
    truth = "".join(f"{label}\n" for label in labels).encode()
    parts = {f"ILSVRC2012_devkit_t12/{TRUTH}": truth,
             f"ILSVRC2012_devkit_t12/{CLASSES}": matlab.getvalue()}  # fmt: skip
    tar(path, parts, "w:gz")


@pytest.fixture
def archives(tmp_path) -> Path:
    root = tmp_path / "data" / "imagenet"
    root.mkdir(parents=True)
    inner = {
        f"{name}.tar": tar(tmp_path / "x", {f"{name}_{i}.JPEG": jpeg(40 * i) for i in (1, 2)})
        for name in FOLDERS
    }
    tar(root / TRAIN, inner)
    images = {f"ILSVRC2012_val_0000000{i}.JPEG": jpeg(60 * i) for i in (3, 1, 2)}
    tar(root / VAL, images)
    kit(root / KIT)
    return root


def test_archives_become_folders_once(archives):
    lines: list[str] = []
    for _ in range(2):
        prepare(["imagenet"], archives.parent, lines.append)
    assert lines == [f"ImageNet: unpacked in {archives.parent}",
                    "ImageNet: already there and sound; left alone"]  # fmt: skip
    data = load_dataset("ImageNet", archives.parent, 16)
    assert (len(data.train), len(data.test), data.classes) == (4, 3, 2)
    assert (archives / "train/n02/n02_1.JPEG").read_bytes() == jpeg(40)
    assert (archives / "val/n01/ILSVRC2012_val_00000001.JPEG").read_bytes() == jpeg(60)
    assert {path.name for path in archives.iterdir()} == {*ARCHIVES, "train", "val"}


def damaged(root: Path) -> None:
    content = (root / TRAIN).read_bytes()
    (root / TRAIN).write_bytes(content[: len(content) // 2])


def outside(root: Path) -> None:
    kit(root / KIT, folders=("../../n02", "n01"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (damaged, "cannot unpack ImageNet's archives in .*: "),
        (outside, r"name '../../n02', 'ILSVRC2012_val_0000000\d.JPEG': no class"),
        (lambda root: kit(root / KIT, labels=(1, 2)), "is none of the 2 images of"),
        (lambda root: kit(root / KIT, labels=(1, 2, 1, 1)), "holds 3 images; .* has labels of 4"),
        (lambda root: kit(root / KIT, labels=(1, 2, 3)), "has a class that data/meta.mat lacks: 3"),
        (lambda root: tar(root / KIT, {"x": b"y"}, "w:gz"), f"lacks {TRUTH}"),
    ],
)
def test_damaged_archives_leave_no_half_of_a_data_set(spoil, message, archives):
    spoil(archives)
    with pytest.raises(DataError, match=message):
        prepare(["ImageNet"], archives.parent, print)
    assert not (archives / "val").exists()
    assert not (archives.parent.parent / "n02").exists()
    with pytest.raises(DataError, match="ImageNet is not in"):
        load_dataset("ImageNet", archives.parent)


def test_without_archives_it_says_what_to_put_where(tmp_path):
    with pytest.raises(ConfigError, match=r"^ImageNet cannot be downloaded\. ") as caught:
        prepare(["ImageNet"], tmp_path, pytest.fail)
    assert f"{VAL}, {KIT}) in {tmp_path}/imagenet, for `atomo prepare`" in str(caught.value)
