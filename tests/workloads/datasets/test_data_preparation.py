"""Published ways to prepare photographs, for any data set of colour images."""

import pytest
import torch
from PIL import Image

from atomo.errors import ConfigError, DataError
from atomo.workloads import make_task, spec_of
from atomo.workloads.datasets import load_dataset
from atomo.workloads.datasets.photographs.imagenette import CLASSES
from atomo.workloads.datasets.photographs.preparation import (
    PREPARATIONS,
    prepare_images,
    squash,
    turn,
)

ALL = torch.arange(6)


def test_small_images_are_brought_to_the_size_of_a_network(tmp_path, write_tree):
    write_tree(tmp_path, size=lambda i: (32, 32), suffix="png")
    plain = load_dataset("Folder", tmp_path)
    data = prepare_images(plain, "vit", None)
    assert (data.input_shape, data.classes, len(data.train)) == ((3, 224, 224), 2, 6)
    seen, labels = data.test.batch(ALL)
    assert labels.equal(plain.test.batch(ALL)[1])
    assert data.test.batch(ALL, seed=1)[0].equal(seen)
    pixels = plain.test.read(torch.tensor([0]))[0]
    expected = squash(pixels, 224).float() / 127.5 - 1
    torch.testing.assert_close(seen[0], expected)
    crops = data.train.batch(ALL, seed=1)[0]
    assert crops.shape == (6, 3, 224, 224)
    assert data.train.batch(ALL.flip(0), seed=1)[0].flip(0).equal(crops)


def test_photographs_keep_their_own_way_by_that_name(tmp_path, write_tree):
    write_tree(tmp_path, size=lambda i: (40 + i, 60))
    plain = load_dataset("Folder", tmp_path, 32)
    again = prepare_images(plain, "photos", 32)
    for split, same in ((plain.train, again.train), (plain.test, again.test)):
        for seed in (None, 4):
            assert split.batch(ALL, seed)[0].equal(same.batch(ALL, seed)[0])


def test_crops_of_vit_are_not_mirrored(tmp_path):
    ramp = torch.linspace(0, 255, 64).to(torch.uint8).expand(3, 48, 64)
    augment = PREPARATIONS["vit"].augment
    generator = torch.Generator().manual_seed(1)
    draws = torch.rand(50, augment.draws, generator=generator, dtype=torch.float64).tolist()
    crops = torch.stack([augment.change(ramp, 16, draw) for draw in draws]).int()
    assert (crops[:, :, :, -1] > crops[:, :, :, 0]).all()


def test_food_is_mirrored_blurred_and_turned():
    photo = torch.zeros(3, 60, 40, dtype=torch.uint8)
    photo[0, :30, :20] = 200  # one quarter of it is red
    quarters = set()
    for across, down in ((0.2, 0.2), (0.2, 0.9), (0.9, 0.2), (0.9, 0.9)):
        image = turn(photo, 48, [across, down, 0.0, 0.0]).int()
        assert image.shape == (3, 48, 48)
        assert not image[:, 0, 0].any()  # turned, so its corners are black
        rows, columns = image[0].nonzero().double().mean(0).tolist()
        quarters.add((round(rows / 8), round(columns / 8)))
    assert len(quarters) == 4
    sharp, soft = (turn(photo, 48, [0.9, 0.9, blur, 0.0])[0] for blur in (0.0, 0.999))
    steps = [crop[12:36, 12:36].int().diff().abs().max() for crop in (sharp, soft)]
    assert steps[1] < steps[0] / 2
    little, strong = (turn(photo, 48, [0.9, 0.9, 0.0, angle]) for angle in (0.0, 0.999))
    assert not little.equal(strong)


def test_a_task_says_how(tmp_path, write_tree):
    write_tree(tmp_path, size=lambda i: (32, 32))
    task = make_task("images(augment=food)")
    assert spec_of(task) == "images(augment='food')"
    assert task.open("Folder", tmp_path, 64).train.batch(ALL, 1).inputs[0].shape == (6, 3, 64, 64)
    with pytest.raises(ConfigError, match="unknown augmentation 'foood'; did you mean 'food'"):
        make_task("images(augment=foood)")
    with pytest.raises(ConfigError, match="Digits has no colour images"):
        task.open("Digits", tmp_path)
    with pytest.raises(ConfigError, match=r"image size 7: .* takes at least 8"):
        task.open("Folder", tmp_path, 7)


def test_imagenette_is_found_in_either_size_and_has_its_ten_classes(tmp_path, write_tree):
    root = tmp_path / "imagenette2-160"
    write_tree(root, classes=CLASSES, splits=("train", "val"), each=1)
    data = load_dataset("imagenette", tmp_path, 24)
    assert (data.classes, data.input_shape, len(data.test)) == (10, (3, 24, 24), 10)
    Image.new("RGB", (8, 8)).save(root / "train" / CLASSES[0] / "x.png")
    for split in ("train", "val"):
        (root / split / CLASSES[3]).rename(root / split / "n1")
    with pytest.raises(DataError, match=f"no folder for class '{CLASSES[3]}'"):
        load_dataset("Imagenette", tmp_path)
    with pytest.raises(DataError, match=r"imagenette2/train and val.*put the folder imagenette2"):
        load_dataset("Imagenette", tmp_path / "elsewhere")
