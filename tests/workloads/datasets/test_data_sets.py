"""Each data set by name: its files, its samples, and the errors for files that do not fit."""

import gzip
import hashlib
import pickle  # the format of the original CIFAR batches
import sys

import numpy as np
import pytest
import torch
from scipy.io import savemat
from torchvision import datasets

from atomo.errors import ConfigError, DataError
from atomo.workloads.datasets import DATASETS, load_dataset

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
CIFARS = [("Cifar10", datasets.CIFAR10, "labels"), ("Cifar100", datasets.CIFAR100, "fine_labels")]


def everything(split):
    return split.batch(torch.arange(len(split)))


def md5(path):
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def sha256(tensor):
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16]


@pytest.fixture
def write_cifar(monkeypatch):
    """Writes the original layout with three images a file; torchvision expects its checksums."""

    def write(root, original, label_key):
        folder = root / original.base_folder
        folder.mkdir(parents=True)
        for attribute in ("train_list", "test_list"):
            entries = []
            for name, _ in getattr(original, attribute):
                data = np.random.default_rng(len(name)).integers(0, 256, (3, 3072), np.uint8)
                (folder / name).write_bytes(pickle.dumps({"data": data, label_key: [4, 0, 9]}))
                entries.append([name, md5(folder / name)])
            monkeypatch.setattr(original, attribute, entries)
        meta = folder / original.meta["filename"]
        meta.write_bytes(pickle.dumps({original.meta["key"]: []}))
        monkeypatch.setattr(original, "meta", {**original.meta, "md5": md5(meta)})
        return folder

    return write


@pytest.fixture
def write_svhn(monkeypatch):
    """Writes the two files with five images each; torchvision expects their checksums."""

    def write(folder):
        folder.mkdir(parents=True, exist_ok=True)
        expected = {}
        for split, (url, name, _) in datasets.SVHN.split_list.items():
            x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 5), np.uint8)
            savemat(folder / name, {"X": x, "y": np.array([[1], [10], [3], [9], [2]])})
            expected[split] = [url, name, md5(folder / name)]
        monkeypatch.setattr(datasets.SVHN, "split_list", expected)
        return folder

    return write


def test_a_name_may_be_spelled_loosely_and_an_unknown_one_offers_the_nearest(tmp_path):
    for spelling in ("Digits", "DIGITS", "dig-its", "di_gits"):
        assert load_dataset(spelling, tmp_path).name == "Digits"
    with pytest.raises(ConfigError, match=r"'Cifar10'.*known: Digits, MNIST, Cifar10, Cifar100"):
        load_dataset("cifar-11", tmp_path)


def test_the_table_is_read_only_and_complete():
    names = ["Digits", "MNIST", "Cifar10", "Cifar100", "SVHN", "ImageNet", "Imagenette", "Folder"]
    names.append("Noise")
    assert [*DATASETS] == names == [source.name for source in DATASETS.values()]
    with pytest.raises(TypeError):
        DATASETS["other"] = DATASETS["MNIST"]


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in {"Digits", "Noise"}])
def test_what_is_missing_says_where_it_was_looked_for_and_what_to_do(name, tmp_path):
    with pytest.raises(DataError) as caught:
        load_dataset(name, tmp_path)
    message = str(caught.value)
    assert f"{name} is not in {tmp_path} (looked for {tmp_path}/" in message
    assert "put " in message
    command = f"`{sys.executable} -m atomo prepare --dataset {name} --data-dir {tmp_path}`"
    assert (command in message) == (name not in {"ImageNet", "Folder"})


@pytest.mark.parametrize("name", ["Digits", "MNIST", "Cifar10", "Cifar100", "SVHN"])
def test_a_data_set_of_one_size_comes_in_no_other(name, tmp_path):
    with pytest.raises(ConfigError, match=f"--image-size 224: {name} comes in"):
        load_dataset(name, tmp_path, image_size=224)


def test_noise_comes_in_any_size_and_is_the_same_everywhere(tmp_path):
    noise, again = (load_dataset("Noise", tmp_path, image_size=8) for _ in range(2))
    indices = torch.tensor([3, 1_000_000, 3 + 64])
    images, labels = noise.train.batch(indices)
    assert images.shape == (3, *noise.input_shape) == (3, 3, 8, 8)
    assert images.equal(again.train.batch(indices)[0])
    assert images[0].equal(images[2])
    assert labels[0] == labels[2]
    assert not images[0].equal(images[1])
    assert len(noise.train) == 1_281_167


def test_digits_keep_their_split(tmp_path):
    digits = load_dataset("Digits", tmp_path, image_size=32)
    assert (digits.classes, digits.input_shape) == (10, (1, 32, 32))
    train, test = digits.train.labels, digits.test.labels
    assert train.bincount().tolist() == [142, 146, 141, 147, 144, 146, 145, 143, 139, 144]
    assert test.bincount().tolist() == [36, 36, 36, 36, 37, 36, 36, 36, 35, 36]
    assert sha256(digits.test.read(torch.arange(360))) == "c96d23714c54a458"
    assert sha256(test) == "89df99af78caf580"


def test_digits_are_normalised_by_their_train_split(tmp_path):
    images, _ = everything(load_dataset("Digits", tmp_path).train)
    assert abs(float(images.double().mean())) < 5e-4
    assert abs(float(images.double().std()) - 1) < 5e-4


@pytest.mark.slow
def test_digits_are_the_originals_between_which_it_interpolates(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_dataset("Digits", tmp_path)
    images = torch.cat([s.read(torch.arange(len(s))) for s in (digits.train, digits.test)]).float()
    # Averages over the four by four pixels around each original centre lose only some contrast.
    small = torch.nn.functional.avg_pool2d(images, 4).flatten(1) * (16 / 255)
    originals = torch.from_numpy(load_digits().data).float()
    assert torch.cdist(small, originals).argmin(1).unique().numel() > 1790


def test_without_scikit_learn_the_digits_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("atomo.workloads.datasets.digits.find_spec", lambda name: None)
    with pytest.raises(DataError, match="-m pip install scikit-learn"):
        load_dataset("Digits", tmp_path)


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
def test_mnist_is_found_in_each_of_its_places(place, tmp_path, write_mnist, mnist_files):
    write_mnist(tmp_path / place)
    mnist = load_dataset("mnist", tmp_path)
    assert (mnist.name, mnist.classes, mnist.input_shape) == ("MNIST", 10, (1, 28, 28))
    images, labels = everything(mnist.train)
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]
    original = torch.tensor([*mnist_files[IMAGES][16:]]).view(6, 1, 28, 28)
    torch.testing.assert_close(images, (original / 255 - 0.1307) / 0.3081)
    assert len(mnist.test) == 4
    assert mnist.train.batch(torch.arange(6), seed=1)[0].equal(images)


def test_an_incomplete_mnist_names_what_is_lacking(tmp_path, write_mnist):
    (write_mnist(tmp_path / "mnist") / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"looked for \S*/mnist/t10k-labels-idx1-ubyte\[.gz\];"):
        load_dataset("MNIST", tmp_path)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (IMAGES, lambda raw: raw[:-1], "holds 4703 entries; its header says .6, 28, 28., which"),
        (IMAGES, lambda raw: raw + b"0", "holds 4705 entries"),
        (IMAGES, lambda raw: b"\0\0\r" + raw[3:], "starts with 00000d03, not with 00000803"),
        (IMAGES, lambda raw: raw[:9], "starts with"),
        (IMAGES, lambda raw: b"", "starts with"),
        (IMAGES, lambda raw: raw[:4] + bytes(12), "is empty"),
        (IMAGES, lambda raw: raw[:11] + b"\x0e" + raw[12:15] + b"\x38" + raw[16:], r"14, 56"),
        (LABELS, lambda raw: raw[:7] + b"\x05" + raw[8:-1], "holds 5 labels for 6 images"),
        (LABELS, lambda raw: raw[:-1] + b"\x0a", "holds label 10; the largest is 9"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_damaged_mnist_file_is_named(name, damage, message, zipped, tmp_path, mnist_files):
    for file_name, content in mnist_files.items():
        raw = damage(content) if file_name == name else content
        path = tmp_path / (f"{file_name}.gz" if zipped else file_name)
        path.write_bytes(gzip.compress(raw) if zipped else raw)
    with pytest.raises(DataError, match=f"{name}.*{message}"):
        load_dataset("MNIST", tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda z: z[:-9], lambda z: z[:500] + b"?" * 200, lambda z: b"x"]
)
def test_a_damaged_gzip_file_is_named(damage, tmp_path, write_mnist):
    path = write_mnist(tmp_path) / f"{IMAGES}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"cannot read .*{IMAGES}.gz: "):
        load_dataset("MNIST", tmp_path)


@pytest.mark.parametrize(("name", "original", "label_key"), CIFARS)
@pytest.mark.parametrize("below", [False, True])
def test_cifar_is_read_from_its_original_files(
    name, original, label_key, below, tmp_path, write_cifar
):
    folder = write_cifar(tmp_path / name.lower() if below else tmp_path, original, label_key)
    cifar = load_dataset(name, tmp_path)
    files = len(original.train_list)
    assert (cifar.input_shape, len(cifar.train), len(cifar.test)) == ((3, 32, 32), 3 * files, 3)
    assert cifar.classes == DATASETS[name].classes
    images, labels = everything(cifar.test)
    assert labels.tolist() == [4, 0, 9]
    data = pickle.loads((folder / original.test_list[0][0]).read_bytes())["data"]
    pixels = torch.from_numpy(data).view(3, 3, 32, 32) / 255
    mean, std = pixels.new_tensor([cifar.test.normalise.mean, cifar.test.normalise.std])
    torch.testing.assert_close(images, (pixels - mean[:, None, None]) / std[:, None, None])
    assert cifar.test.augment is None
    assert cifar.train.augment.flip


@pytest.mark.parametrize(("name", "original", "label_key"), CIFARS)
def test_a_damaged_or_missing_cifar_file_is_named(name, original, label_key, tmp_path, write_cifar):
    folder = write_cifar(tmp_path, original, label_key)
    victim = folder / original.test_list[0][0]
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"{victim} is damaged"):
        load_dataset(name, tmp_path)
    victim.unlink()
    with pytest.raises(DataError, match=f"{name} is incomplete: {victim} is missing"):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize("place", ["svhn", "."])
def test_svhn_is_shifted_but_never_mirrored(place, tmp_path, write_svhn):
    write_svhn(tmp_path / place)
    svhn = load_dataset("SVHN", tmp_path)
    assert everything(svhn.train)[1].tolist() == [1, 0, 3, 9, 2]
    assert (svhn.train.augment.padding, svhn.train.augment.flip) == (4, False)
    assert svhn.test.augment is None
    images = svhn.train.batch(torch.arange(5), seed=1)[0]
    assert images.shape == (5, 3, 32, 32)


def test_a_damaged_svhn_file_is_named(tmp_path, write_svhn):
    victim = write_svhn(tmp_path / "svhn") / "test_32x32.mat"
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"{victim} is damaged"):
        load_dataset("SVHN", tmp_path)
