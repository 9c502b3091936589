"""`delete_images`: deletes the images that `bake` has made."""

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Final

from atomo_cluster.ec2.images.baked import BakedImage, baked, delete, snapshots
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.errors import CloudError, ConfigError, LeftBehind
from atomo_cluster.names import nearest

HELP: Final = """\
  pytorch_ec2.py delete_images
  pytorch_ec2.py delete_images ami-0abc --yes --json

Deletes the images that `bake` has made of this cluster, or those that are named, and their
snapshots; then checks that they are gone. Hosts that were launched from them keep running."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("images", metavar="AMI", nargs="*", help="these alone (default all)")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(run: Run) -> int:
    images = baked(run.aws, run.owned)
    loose = [item for item in snapshots(run.aws, run.owned)
             if item.image not in {image.id for image in images}]  # fmt: skip
    chosen = [item for item in images if item.id in wanted(run, images)]
    for item in chosen:
        run.say(image_line(item))
    for loose_snapshot in loose:
        run.say(f"{loose_snapshot.id}, {loose_snapshot.gb} GB, of an image that is gone")
    if chosen or loose:
        run.confirm("Delete these?")
        end(run, chosen)
    run.say(f"{run.cluster.name}: {len(chosen)} images deleted, {len(images) - len(chosen)} left")
    run.tell({"deleted": [asdict(item) for item in chosen]})
    return 0


def wanted(run: Run, images: list[BakedImage]) -> list[str]:
    """Returns the identifiers of the images to delete."""
    ids = [image.id for image in images]
    for id in run.options.images:
        if id not in ids:
            raise ConfigError(f"{id} is no image of {run.cluster.name}; {nearest(id, ids)}")
    return run.options.images or ids


def end(run: Run, chosen: list[BakedImage]) -> None:
    """Deletes images.

    Raises:
        LeftBehind: some still exist, or may exist.
    """
    try:
        delete(run.aws, run.owned, [image.id for image in chosen])
    except CloudError as error:
        raise LeftBehind(f"{error}; `delete_images` again deletes the remaining images") from error


def image_line(image: BakedImage) -> str:
    """Formats an image for lists."""
    kind = f"{image.image.architecture}, {'GPUs' if image.gpus else 'no GPUs'}"
    return f"image {image.id} {image.state}, {image.gb} GB, {kind}, of {image.made:%F %R} UTC"
