"""Detection: batches, losses, and a network that learns to find shapes."""

import json

import pytest
import torch
from torchvision.models.detection.roi_heads import paste_masks_in_image
from workloads.shapes import write_shapes
from workloads.training import trained

from atomo.launch.display.lines import evaluation_line
from atomo.training.evaluation.scoring import Evaluation
from atomo.workloads import Workload, make_task
from atomo.workloads.detection.samples import has_extent

SMALL = "detection(min_size=64, max_size=96, width=8, regions=8, detections=5)"
TINY = "fasterrcnn_resnet18_fpn"


@pytest.fixture
def folder(tmp_path):
    write_shapes(tmp_path / "coco", train=4, val=2)
    return tmp_path


def opened(folder, spec: str = SMALL) -> Workload:
    return make_task(spec).open("COCO", folder)


def rewritten(folder, split: str, change) -> dict:
    """Returns the annotations of a split after `change` was made to them."""
    path = folder / "coco/annotations" / f"instances_{split}2017.json"
    whole = json.loads(path.read_text())
    change(whole)
    path.write_text(json.dumps(whole))
    return whole


def targets(batch) -> tuple[list, list]:
    """Returns a batch as torchvision's reference has it: images and their targets."""
    pixels, sizes, counts, boxes, categories, masks = batch.inputs
    images, targets_read, object_, pixel, mask = [], [], 0, 0, 0
    for (h, w), n in zip(sizes.tolist(), counts.tolist(), strict=True):
        images.append(pixels[pixel : pixel + 3 * h * w].view(3, h, w) / 255)
        here = slice(object_, object_ + n)
        labels = torch.tensor([[3, 18].index(category) + 1 for category in categories[here]])
        own = masks[mask : mask + n * h * w].view(n, h, w)
        targets_read.append({"boxes": boxes[here], "labels": labels, "masks": own})
        object_, pixel, mask = object_ + n, pixel + 3 * h * w, mask + n * h * w
    return images, targets_read


@pytest.mark.long
def test_three_processes_find_shapes_and_their_outlines(tmp_path):
    write_shapes(tmp_path / "coco")
    values = trained(
        tmp_path,
        task="detection(min_size=60, max_size=64, width=32, regions=16, detections=10)",
        network="maskrcnn_resnet18_fpn",
        code="sgd",
        lr=0.02,
        clip_grad=10.0,
        batch_size=2,
        max_steps=75,
        log_format="atomo",  # which scores batches of training, where there are scores
    )
    # Ranks are threads here, which draw regions from one generator: no two runs are alike.
    assert values["box_ap50"] > 0.2
    assert values["mask_ap50"] > 0.2


def test_a_batch_has_images_of_unequal_sizes_and_what_is_on_them(folder):
    whole = rewritten(folder, "train", lambda whole: None)
    work = opened(folder)
    assert (len(work.train), len(work.test)) == (4, 2)
    images, targets_read = targets(work.train.batch(torch.tensor([2, 0])))
    for image, target, number in zip(images, targets_read, (3, 1), strict=True):
        entry = whole["images"][number - 1]
        assert tuple(image.shape[1:]) == (entry["height"], entry["width"])
        own = [instance for instance in whole["annotations"] if instance["image_id"] == number]
        expected = torch.tensor([instance["bbox"] for instance in own])
        expected[:, 2:] += expected[:, :2]
        torch.testing.assert_close(target["boxes"], expected)
        assert target["labels"].tolist() == [
            [3, 18].index(instance["category_id"]) + 1 for instance in own
        ]
        for box, mask in zip(target["boxes"], target["masks"], strict=True):
            rows, columns = mask.nonzero().unbind(1)
            ends = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert (ends - box).abs().max() <= 1
            assert image[:, mask.bool()].mean() > image[:, ~mask.bool()].mean()


def test_an_image_is_mirrored_with_its_boxes_and_masks(folder):
    train = opened(folder).train
    indices = torch.arange(4)
    plain, mirrored = (targets(train.batch(indices, seed)) for seed in (None, 3))
    different = 0
    for image, target, mirrored_image, of_other in zip(*plain, *mirrored, strict=True):
        if not torch.equal(image, mirrored_image):
            different += 1
            assert torch.equal(image.flip(-1), mirrored_image)
            assert torch.equal(target["masks"].flip(-1), of_other["masks"])
            left, _, right, _ = target["boxes"].unbind(1)
            assert torch.equal(of_other["boxes"][:, 0], image.shape[2] - right)
            assert torch.equal(of_other["boxes"][:, 2], image.shape[2] - left)
    assert 0 < different < 4
    alone = targets(train.batch(torch.tensor([2]), 3))
    assert torch.equal(alone[0][0], mirrored[0][2])  # whoever else is in its batch


@pytest.mark.slow
def test_crowds_and_what_has_no_extent_are_no_objects_to_learn(folder):
    def change(whole):
        whole["annotations"] = [instance | {"image_id": 1} for instance in whole["annotations"][:3]]
        first, second, third = whole["annotations"]
        first |= {"iscrowd": 1, "image_id": 2}
        first["segmentation"] = {"size": size(whole, 2), "counts": runs(whole, 2)}
        second |= {"bbox": [-5, 10, 20, 500], "segmentation": [[0, 10, 15, 10, 15, 60, 0, 60]]}
        third |= {"bbox": [30, 30, 0, 20]}
        whole["annotations"].append(third | {"id": 7, "image_id": 3})

    whole = rewritten(folder, "train", change)
    work = opened(folder)
    # An image of a crowd alone stays, as in torchvision's reference; one of nothing with an extent,
    # or of nothing at all, does not.
    assert len(work.train) == 2
    _, (instance, crowd) = targets(work.train.batch(torch.arange(2)))
    height = whole["images"][0]["height"]
    assert instance["boxes"].tolist() == [[0, 10, 15, height]]
    assert instance["masks"].sum() == 15 * 50
    assert (len(crowd["boxes"]), len(crowd["masks"])) == (0, 0)
    assert not has_extent(work.train.annotations.pictures[3])
    network = work.build("maskrcnn_resnet18_fpn").train()
    for indices in (torch.arange(2), torch.tensor([1])):
        loss = work.objective.loss(network(*work.train.batch(indices).inputs), indices)
        assert loss.isfinite()


def size(whole, number):
    return [whole["images"][number - 1][key] for key in ("height", "width")]


def runs(whole, number):
    height, width = size(whole, number)
    return [height, 30, height * width - height - 30]


@pytest.mark.slow
def test_losses_are_those_of_the_model_itself(folder):
    work = opened(folder)
    torch.manual_seed(1)
    network, batch = work.build("maskrcnn_resnet18_fpn").train(), work.train.batch(torch.arange(3))
    torch.manual_seed(2)  # regions are drawn
    detections = network(*batch.inputs)
    torch.manual_seed(2)
    losses = network.model(*targets(batch))
    names = ["loss_box_reg", "loss_classifier", "loss_mask", "loss_objectness", "loss_rpn_box_reg"]
    assert sorted(losses) == names
    torch.testing.assert_close(work.objective.loss(detections, batch.targets), sum(losses.values()))
    assert float(work.objective.right(detections, batch.targets)) == 0


@pytest.mark.slow
def test_detections_are_those_of_the_model_itself_one_image_at_a_time(folder):
    work = opened(folder)
    torch.manual_seed(1)
    network, batch = work.build("maskrcnn_resnet18_fpn").eval(), work.test.batch(torch.arange(2))
    pixels, sizes = batch.inputs
    network.model.roi_heads.score_thresh = 0.0
    with torch.inference_mode():
        detections = network(pixels, sizes)
        cut = int(sizes[0].prod()) * 3
        images = [pixels[:cut].view(3, *sizes[0]) / 255, pixels[cut:].view(3, *sizes[1]) / 255]
        expected = [network.model([image])[0] for image in images]
    assert detections.counts.tolist() == [len(instance["boxes"]) for instance in expected] == [5, 5]
    torch.testing.assert_close(
        detections.boxes, torch.cat([instance["boxes"] for instance in expected])
    )
    torch.testing.assert_close(
        detections.scores, torch.cat([instance["scores"] for instance in expected])
    )
    labels = torch.cat([instance["labels"] for instance in expected])
    assert detections.categories.tolist() == [[3, 18][label - 1] for label in labels]
    last = paste_masks_in_image(
        detections.masks[5:, None], detections.boxes[5:], tuple(sizes[1].tolist())
    )
    torch.testing.assert_close(last, expected[1]["masks"])


def test_which_category_is_which_is_kept_with_the_weights(folder):
    network = opened(folder).build(TINY)
    assert network.state_dict()["category_ids"].tolist() == [3, 18]
    assert network.labels(torch.tensor([18, 3, 18])).tolist() == [2, 1, 2]


def test_a_result_without_a_loss_has_a_line():
    values = {"box_ap": 0.5, "box_ap50": 0.75, "box_ap75": float("nan")}
    line = evaluation_line(Evaluation(3, values, 2, SMALL))
    assert line == "step 3: test box AP 50.00% AP50 75.00% AP75 nan% on 2 images"
