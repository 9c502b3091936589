"""ImageNet (Russakovsky et al., IJCV 2015), or any part of it, as a folder a class."""

from pathlib import Path

from atomo.workloads.datasets.base import Dataset, DatasetSource, missing
from atomo.workloads.datasets.photographs.folder import find_trees, photo_dataset
from atomo.workloads.datasets.photographs.imagenet_archives import ARCHIVES, unpack_archives
from atomo.workloads.datasets.photographs.photos import PHOTO_SIZE, photo_shape

__all__ = ["IMAGENET"]


def load(data_dir: Path, image_size: int | None) -> Dataset:
    """Reads `data_dir`/imagenet or `data_dir` itself. Nothing decoded is kept: it would not fit."""
    shape = photo_shape(image_size)
    roots = data_dir / "imagenet", data_dir
    for root in roots:
        trees = find_trees(root, ("val",))
        if trees:
            return photo_dataset("ImageNet", trees, shape)
    raise missing(IMAGENET, data_dir, [f"{root}/train and {root}/val" for root in roots])


IMAGENET = DatasetSource(
    name="ImageNet",
    input_shape=(3, PHOTO_SIZE, PHOTO_SIZE),
    classes=None,  # a subset of the classes is common
    load=load,
    unpack=lambda data_dir: unpack_archives(data_dir / "imagenet") or unpack_archives(data_dir),
    by_hand=(
        "the ILSVRC2012 images, which image-net.org gives out to those who register, in "
        "{data_dir}/imagenet/train/CLASS/ and {data_dir}/imagenet/val/CLASS/, or its "
        f"archives ({', '.join(ARCHIVES)}) in {{data_dir}}/imagenet, for `atomo prepare`"
    ),
)
