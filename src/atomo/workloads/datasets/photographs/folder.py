"""Any images: `train/CLASS/*` and `test/CLASS/*` (or `val/CLASS/*`)."""

from collections.abc import Sequence
from pathlib import Path

from jaxtyping import UInt8
from torch import Tensor

from atomo.workloads.datasets.arrays import ArraySplit, CropFlip, Normalisation
from atomo.workloads.datasets.base import Dataset, DatasetSource, missing
from atomo.workloads.datasets.photographs.files import (
    CACHE_BYTES,
    Decoded,
    Tree,
    common_size,
    decode_image,
    header_size,
    list_tree,
    require_classes,
)
from atomo.workloads.datasets.photographs.photos import (
    IMAGENET_NORMALISATION,
    INCEPTION,
    PhotoSplit,
    photo_shape,
)

__all__ = ["FOLDER", "find_trees", "photo_dataset", "small_dataset"]

SMALL = 64  # pixels a side up to which images of one size are taken as they are
TRAIN = ("train", "Train")
TEST = ("test", "Test", "val", "Validate", "valid")  # published folders have one or another


def load(data_dir: Path, image_size: int | None) -> Dataset:
    """Reads `data_dir` itself: small images of one size as they are, others resized."""
    trees = find_trees(data_dir, TEST)
    if trees is None:
        raise missing(FOLDER, data_dir, [f"{data_dir}/train", f"{data_dir}/test or {data_dir}/val"])
    shape = photo_shape(image_size)
    size = shared_size(trees)
    if size and max(size) <= SMALL and (image_size is None or size == shape[1:]):
        return small_dataset("Folder", trees, size, IMAGENET_NORMALISATION)
    return photo_dataset("Folder", trees, shape, size)


def shared_size(trees: tuple[Tree, Tree]) -> tuple[int, int] | None:
    """Returns height and width if all images share them and something follows from it."""
    first = header_size(trees[0].paths[0])
    if max(first) > SMALL and not fits(trees, first):
        return None  # a large data set is spared the reading of every header
    return common_size(path for tree in trees for path in tree.paths)


def find_trees(root: Path, test_names: Sequence[str]) -> tuple[Tree, Tree] | None:
    """Returns the trees in `root`/train (or Train) and in the first of `root`/`test_names`, if both
    are.

    Raises:
        DataError: a tree is empty, or their classes differ.
    """
    train_root, test_root = first_folder(root, TRAIN), first_folder(root, test_names)
    if train_root is None or test_root is None:
        return None
    train, test = list_tree(train_root), list_tree(test_root)
    require_classes(train.classes, test.classes, test_root)
    return train, test


def first_folder(root: Path, names: Sequence[str]) -> Path | None:
    """Returns the first of some folders in `root` that is there."""
    return next((root / name for name in names if (root / name).is_dir()), None)


def small_dataset(
    name: str, trees: tuple[Tree, Tree], size: tuple[int, int], normalise: Normalisation
) -> Dataset:
    """Images of one size, in that size; decoded pixels are kept if all fit in `CACHE_BYTES`."""
    keep = fits(trees, size)
    train, test = (
        ArraySplit(Decoded(tree.paths, size, keep=keep).read, tree.labels, normalise, augment)
        for tree, augment in zip(trees, (CropFlip(), None), strict=True)
    )
    return Dataset(name, len(trees[0].classes), (3, *size), train, test)


def photo_dataset(
    name: str,
    trees: tuple[Tree, Tree],
    shape: tuple[int, int, int],
    size: tuple[int, int] | None = None,
) -> Dataset:
    """Images of any size, brought to `shape`; those that share one `size` are kept if they fit."""

    def split(tree: Tree, augment: bool) -> PhotoSplit:
        def afresh(index: int) -> UInt8[Tensor, "3 h w"]:
            return decode_image(tree.paths[index])

        read = afresh
        if size and fits(trees, size):
            read = Decoded(tree.paths, size, keep=True).image
        change = INCEPTION if augment else None
        return PhotoSplit(read, tree.labels, shape[1], IMAGENET_NORMALISATION, change)

    train, test = split(trees[0], True), split(trees[1], False)
    return Dataset(name, len(trees[0].classes), shape, train, test)


def fits(trees: tuple[Tree, Tree], size: tuple[int, int]) -> bool:
    """True if both trees, decoded, fit in `CACHE_BYTES`."""
    return sum(len(tree.paths) for tree in trees) * 3 * size[0] * size[1] <= CACHE_BYTES


FOLDER = DatasetSource(
    name="Folder",
    input_shape=None,
    classes=None,
    load=load,
    by_hand="training images in {data_dir}/train/CLASS/ and test images in {data_dir}/test/CLASS/",
)
