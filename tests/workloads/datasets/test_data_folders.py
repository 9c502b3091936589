"""Data sets made of image files."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from atomo.errors import ConfigError, DataError
from atomo.workloads.datasets import load_dataset
from atomo.workloads.datasets.photographs import folder
from atomo.workloads.datasets.photographs.photos import DRAWS, crop_box

CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def mixed(i):
    return (40 + i, 60 - i)


def rgb(path):
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)


def undo(images, normalise):
    mean, std = (torch.tensor(v)[:, None, None] for v in (normalise.mean, normalise.std))
    return ((images * std + mean) * 255).round().byte()


@pytest.mark.parametrize("suffix", ["jpg", "png", "JPEG"])
def test_small_images_of_one_size_keep_it(suffix, tmp_path, write_tree):
    write_tree(tmp_path, size=lambda i: (48, 32), suffix=suffix)
    data = load_dataset("Folder", tmp_path)
    assert (data.classes, data.input_shape) == (2, (3, 48, 32))
    images, labels = data.train.batch(torch.tensor([4, 0]))
    assert labels.tolist() == [1, 0]
    expected = [tmp_path / f"train/dog/0001.{suffix}", tmp_path / f"train/cat/0000.{suffix}"]
    assert undo(images, data.train.normalise).equal(torch.stack([rgb(path) for path in expected]))
    assert not data.train.batch(torch.arange(6), seed=1)[0].equal(
        data.train.batch(torch.arange(6))[0]
    )
    assert data.test.batch(torch.arange(6), seed=1)[0].equal(data.test.batch(torch.arange(6))[0])


def test_grey_and_transparent_images_become_rgb(tmp_path, write_tree):
    write_tree(tmp_path, suffix="png")
    Image.new("L", (32, 32), 7).save(tmp_path / "train/cat/0000.png")
    Image.new("RGBA", (32, 32), (1, 2, 3, 255)).save(tmp_path / "train/cat/0001.png")
    Image.new("P", (32, 32)).save(tmp_path / "train/cat/0002.png")
    data = load_dataset("Folder", tmp_path)
    images = undo(data.train.batch(torch.arange(3))[0], data.train.normalise)
    assert images[:2, :, 5, 5].tolist() == [[7, 7, 7], [1, 2, 3]]


def test_other_files_and_hidden_ones_do_not_count(tmp_path, write_tree):
    write_tree(tmp_path)
    (tmp_path / "train/.cache").mkdir()
    (tmp_path / "train/notes.txt").write_text("no class")
    (tmp_path / "train/cat/._0000.jpg").write_text("no image")
    (tmp_path / "train/cat/list.txt").write_text("no image")
    assert len(load_dataset("Folder", tmp_path).train) == 6


@pytest.mark.parametrize("size", [None, mixed, lambda i: (70, 80)])
def test_decoded_images_are_kept_only_where_all_have_one_size_and_fit(
    size, tmp_path, write_tree, monkeypatch
):
    for bound in (folder.CACHE_BYTES, 0):
        monkeypatch.setattr(folder, "CACHE_BYTES", bound)
        root = write_tree(tmp_path / str(bound), size=size)
        data = load_dataset("Folder", root)
        first = data.train.batch(torch.arange(6))[0]
        shutil.rmtree(root)
        if bound and size is not mixed:
            assert data.train.batch(torch.arange(6))[0].equal(first)
        else:
            with pytest.raises(DataError, match=r"cannot read image .*train/cat/0000.jpg"):
                data.train.batch(torch.arange(6))


def test_images_are_decoded_when_first_asked_for(tmp_path, write_tree):
    write_tree(tmp_path)
    data = load_dataset("Folder", tmp_path)
    (tmp_path / "train/cat/0001.jpg").write_bytes(b"")
    data.train.batch(torch.tensor([0, 2, 3]))
    with pytest.raises(DataError, match=r"cannot read image .*train/cat/0001.jpg"):
        data.train.batch(torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("image_size", "shape"), [(None, (3, 224, 224)), (48, (3, 48, 48)), (1, (3, 1, 1))]
)
def test_images_of_any_size_are_brought_to_one(image_size, shape, tmp_path, write_tree):
    write_tree(tmp_path, size=mixed, splits=("train", "val"))
    data = load_dataset("Folder", tmp_path, image_size)
    assert data.input_shape == shape
    for split in (data.train, data.test):
        images, labels = split.batch(torch.tensor([5, 0, 5]), seed=3)
        assert images.shape == (3, *shape)
        assert labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "splits", [("Train", "Test"), ("Train", "Validate"), ("train", "valid"), ("Train", "val")]
)
def test_published_folders_spell_their_splits_in_other_ways(splits, tmp_path, write_tree):
    write_tree(tmp_path, splits=splits, each=1)
    data = load_dataset("Folder", tmp_path)
    assert len(data.train) == len(data.test) == data.classes


def test_small_images_are_resized_where_a_size_is_asked_for(tmp_path, write_tree):
    write_tree(tmp_path)
    assert load_dataset("Folder", tmp_path, 64).input_shape == (3, 64, 64)
    assert load_dataset("Folder", tmp_path, 32).train.normalise is folder.IMAGENET_NORMALISATION
    assert type(load_dataset("Folder", tmp_path, 32).train).__name__ == "ArraySplit"
    with pytest.raises(ConfigError, match=r"image size 0; at least 1"):
        load_dataset("Folder", tmp_path, 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_photograph_is_augmented_alike_in_every_batch(threads, tmp_path, write_tree):
    write_tree(tmp_path, size=mixed)
    split = load_dataset("Folder", tmp_path, 32).train
    object.__setattr__(split, "threads", threads)
    whole = split.batch(torch.arange(6), seed=5)[0]
    parts = torch.cat([split.batch(torch.tensor([i]), seed=5)[0] for i in range(6)])
    assert whole.equal(parts)
    assert split.batch(torch.arange(6).flip(0), seed=5)[0].equal(whole.flip(0))
    assert (split.batch(torch.arange(6), seed=6)[0] != whole).flatten(1).any(1).all()


def test_half_of_the_photographs_are_mirrored_and_each_is_cropped_in_its_own_way(tmp_path):
    ramp = np.linspace(0, 255, 90).astype(np.uint8)[None, :, None].repeat(70, 0).repeat(3, 2)
    for split, copies in (("train", 150), ("test", 1)):
        (tmp_path / split / "a").mkdir(parents=True)
        for i in range(copies):
            Image.fromarray(ramp).save(tmp_path / split / "a" / f"{i:03}.png")
    split = load_dataset("Folder", tmp_path, 8).train
    images = split.batch(torch.arange(150), seed=0)[0]
    rising = int((images[:, 0, 4, 7] > images[:, 0, 4, 0]).sum())
    assert 50 < rising < 100  # four standard deviations
    assert images.flatten(1).unique(dim=0).shape[0] > 140


def test_evaluation_takes_the_centre(tmp_path, write_tree):
    write_tree(tmp_path, size=lambda i: (300, 400 + i), each=1)
    data = load_dataset("Folder", tmp_path)
    images = undo(data.test.batch(torch.tensor([0]))[0], data.test.normalise)
    original = Image.open(tmp_path / "test/cat/0000.jpg")
    width = int(256 * original.width / original.height)
    left = round((width - 224) / 2)
    resized = original.resize((width, 256), Image.Resampling.BILINEAR)
    expected = resized.crop((left, 16, left + 224, 240))
    difference = images[0].int() - torch.from_numpy(np.array(expected)).permute(2, 0, 1).int()
    assert difference.abs().max() <= 2


def test_random_crops_fit_and_cover_what_they_should():
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(2000, DRAWS, generator=generator, dtype=torch.float64).tolist()
    boxes = torch.tensor([crop_box(300, 400, d) for d in draws])
    top, left, height, width = boxes.unbind(1)
    assert (boxes >= 0).all()
    assert (top + height <= 300).all()
    assert (left + width <= 400).all()
    share, ratio = height * width / 120_000, width / height
    assert 0.079 < share.min() < 0.1
    assert share.max() > 0.9
    assert 0.74 < ratio.min() < 0.76
    assert 1.32 < ratio.max() < 1.35
    assert (top == 0).any()
    assert (top + height == 300).any()


@pytest.mark.parametrize(
    ("shape", "box"), [((1000, 10), (493, 0, 13, 10)), ((10, 1000), (0, 493, 10, 13))]
)
def test_a_strip_that_no_crop_fits_gives_its_centre(shape, box):
    assert crop_box(*shape, [0.99] * DRAWS) == box


def test_the_classes_of_both_splits_are_the_same(tmp_path, write_tree):
    write_tree(tmp_path)
    shutil.copytree(tmp_path / "test/cat", tmp_path / "test/eel")
    with pytest.raises(DataError, match=r"test/eel is no class; there are cat, dog"):
        load_dataset("Folder", tmp_path)
    shutil.rmtree(tmp_path / "test/eel")
    shutil.rmtree(tmp_path / "test/dog")
    with pytest.raises(DataError, match=r"test has no folder for class 'dog'"):
        load_dataset("Folder", tmp_path)


def test_a_class_without_images_and_a_split_without_classes_are_refused(tmp_path, write_tree):
    write_tree(tmp_path)
    (tmp_path / "train/empty").mkdir()
    with pytest.raises(DataError, match=r"train/empty holds no image"):
        load_dataset("Folder", tmp_path)
    shutil.rmtree(tmp_path / "train")
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=r"train holds no folder"):
        load_dataset("Folder", tmp_path)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"text", lambda b: b""])
@pytest.mark.parametrize("size", [None, mixed])
def test_an_image_that_cannot_be_read_is_named(suffix, damage, size, tmp_path, write_tree):
    write_tree(tmp_path, size=size, suffix=suffix)
    victim = tmp_path / f"test/dog/0002.{suffix}"
    victim.write_bytes(damage(victim.read_bytes()))
    with pytest.raises(DataError, match=f"cannot read image {victim}: "):
        load_dataset("Folder", tmp_path).test.batch(torch.arange(6))


def test_an_image_with_16_bits_a_channel_is_named(tmp_path, write_tree):
    write_tree(tmp_path, suffix="png")
    Image.fromarray(np.zeros((32, 32), np.uint16)).save(tmp_path / "test/dog/0002.png")
    with pytest.raises(DataError, match=r"test/dog/0002.png: more than 8 bits"):
        load_dataset("Folder", tmp_path).test.batch(torch.arange(6))


def test_cifar10_may_be_a_folder_of_images(tmp_path, write_tree):
    write_tree(tmp_path / "cifar10", classes=CIFAR, each=2)
    data = load_dataset("Cifar10", tmp_path)
    assert (data.name, data.classes, data.input_shape) == ("Cifar10", 10, (3, 32, 32))
    images, labels = data.train.batch(torch.arange(20))
    assert labels.tolist() == sorted([*range(10)] * 2)
    assert data.train.normalise.mean == (0.4914, 0.4822, 0.4465)
    assert not data.train.batch(torch.arange(20), seed=1)[0].equal(images)
    assert data.test.augment is None


def test_a_cifar10_folder_has_the_ten_classes_and_the_size_of_cifar10(tmp_path, write_tree):
    root = write_tree(
        tmp_path / "cifar10", classes=CIFAR, each=1, size=lambda i: (32, 32 + i // 19)
    )
    data = load_dataset("Cifar10", tmp_path)
    with pytest.raises(DataError, match=r"truck/0000.jpg is 32x33, and should be 32x32"):
        data.test.batch(torch.arange(10))
    for split in ("train", "test"):
        (root / split / "cat").rename(root / split / "kitten")
    with pytest.raises(DataError, match=r"train has no folder for class 'cat'; it needs 10"):
        load_dataset("Cifar10", tmp_path)


@pytest.mark.parametrize("place", ["imagenet", "."])
def test_imagenet_is_streamed_from_its_folders(place, tmp_path, write_tree):
    write_tree(tmp_path / place, classes=("n01", "n02", "n03"), splits=("train", "val"), each=1)
    data = load_dataset("ImageNet", tmp_path)
    assert (data.classes, data.input_shape) == (3, (3, 224, 224))
    images, labels = data.train.batch(torch.tensor([2, 1]), seed=0)
    assert images.shape == (2, 3, 224, 224)
    assert labels.tolist() == [2, 1]
    (tmp_path / place / "train/n03/0000.jpg").unlink()
    with pytest.raises(DataError, match=r"n03/0000.jpg"):
        data.train.batch(torch.tensor([2]))
