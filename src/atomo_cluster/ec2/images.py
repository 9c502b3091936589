"""Images that are baked of a cluster's hosts, and the snapshots that they are made of.

They outlive the cluster, so they do not carry its tag: nothing but `delete_images` ends them.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from atomo_cluster.ec2.aws import Aws
from atomo_cluster.ec2.catalogue import Image, Machine, find_image, image
from atomo_cluster.ec2.config import BAKED
from atomo_cluster.ec2.tags import GPUS, IMAGE, OWNER, Owned, as_dict
from atomo_cluster.errors import CloudError, ConfigError, LeftBehind

__all__ = ["Baked", "Snapshot", "baked", "chosen", "create", "delete", "snapshots"]

GONE: Final = ("InvalidAMIID.Unavailable", "InvalidAMIID.NotFound", "InvalidSnapshot.NotFound")


@dataclass(frozen=True)
class Baked:
    """An image of a cluster."""

    image: Image
    state: str
    gpus: bool  # whether its host had GPUs, and so a driver
    gb: int  # of its disk; what the snapshot has of it is no more
    made: datetime

    @property
    def id(self) -> str:
        return self.image.id


@dataclass(frozen=True)
class Snapshot:
    """A disk of an image."""

    id: str
    gb: int
    made: datetime
    image: str


def mine(owned: Owned) -> list[dict[str, Any]]:
    """What finds the images of a cluster, and their snapshots."""
    return [{"Name": f"tag:{IMAGE}", "Values": [owned.cluster]},
            {"Name": f"tag:{OWNER}", "Values": [owned.owner]}]  # fmt: skip


def baked(aws: Aws, owned: Owned) -> list[Baked]:
    """The images of a cluster, the newest first."""
    return newest(aws.pages("ec2.describe_images", "Images", Owners=["self"], Filters=mine(owned)))


def newest(described: Iterable[Mapping[str, Any]]) -> list[Baked]:
    """Images from EC2's descriptions, the newest first."""
    return sorted(map(from_description, described), key=lambda one: one.made, reverse=True)


def from_description(described: Mapping[str, Any]) -> Baked:
    """An image from EC2's description."""
    found = image(described)
    return Baked(
        image=found,
        state=described["State"],
        gpus=as_dict(described).get(GPUS) == "yes",
        gb=found.root_gb,
        made=datetime.fromisoformat(described["CreationDate"].replace("Z", "+00:00")),
    )


def snapshots(aws: Aws, owned: Owned) -> list[Snapshot]:
    """The snapshots of a cluster's images, also of those that are gone."""
    found = aws.pages("ec2.describe_snapshots", "Snapshots", OwnerIds=["self"], Filters=mine(owned))
    return [
        Snapshot(one["SnapshotId"], int(one["VolumeSize"]), one["StartTime"], named_in(one))
        for one in found
    ]


def named_in(described: Mapping[str, Any]) -> str:
    """The image that a snapshot's description names: `Created by CreateImage(i-1) for ami-1`."""
    last = str(described.get("Description", "")).rpartition(" for ")[2].split()
    return last[0] if last and last[0].startswith("ami-") else ""


def chosen(aws: Aws, owned: Owned, image_id: str, wanted: Machine) -> Image:
    """The image that suits a type: by its identifier, the latest of AWS's, or the newest baked one.

    Raises:
        ConfigError: there is none.
    """
    if image_id != BAKED:
        return find_image(aws, image_id, wanted)
    asked = {"Owners": ["self"], "Filters": mine(owned)}
    suited = [
        one for one in newest(aws.constant("ec2.describe_images", "Images", **asked))
        if one.state == "available" and one.image.architecture == wanted.architecture
        and (one.gpus or not wanted.gpus)
    ]  # fmt: skip
    if not suited:
        what = f"{wanted.architecture}, with a driver for GPUs" if wanted.gpus else (
            wanted.architecture)  # fmt: skip
        raise ConfigError(
            f"image_id {BAKED}: {owned.cluster} has no image in {aws.region} for {wanted.type} "
            f"({what}); launch with image_id latest, then `bootstrap` and `bake` make one"
        )
    return min(suited, key=lambda one: one.gpus != bool(wanted.gpus)).image


def create(aws: Aws, owned: Owned, instance: str, gpus: bool) -> str:
    """Has EC2 restart a host and make an image of its disk; the image's identifier.

    Raises:
        CloudError: it does not, and there is no image.
        LeftBehind: AWS does not say whether there is one.
    """
    name = f"{owned.label}-{uuid.uuid4().hex[:12]}"
    pairs = {**dict(owned.further), IMAGE: owned.cluster, OWNER: owned.owner, "Name": name,
             GPUS: "yes" if gpus else "no"}  # fmt: skip
    tags = [{"Key": key, "Value": value} for key, value in pairs.items()]
    kinds = [{"ResourceType": kind, "Tags": tags} for kind in ("image", "snapshot")]
    try:
        made = aws.call("ec2.create_image", InstanceId=instance, Name=name,
                        Description=f"environment of {owned.cluster}",
                        TagSpecifications=kinds)  # fmt: skip
    except CloudError as error:
        if found := looked_for(aws, owned, name, error):
            return found[0]  # the answer was lost
        raise
    return str(made["ImageId"])


def looked_for(aws: Aws, owned: Owned, name: str, cause: CloudError) -> list[str]:
    """The images of a name, after a call that failed."""
    try:
        return [one.id for one in baked(aws, owned) if one.image.name == name]
    except CloudError as error:
        raise LeftBehind(
            f"{cause}; and AWS does not say whether there is an image {name} now, which costs "
            f"({error}): `status` tells later, `delete_images` deletes"
        ) from cause


def delete(aws: Aws, owned: Owned, ids: Sequence[str]) -> None:
    """Deletes images and their snapshots, and looks whether they are gone.

    Raises:
        CloudError: something is still there; the message names it.
    """
    kept = {one.id for one in baked(aws, owned)} - set(ids)
    doomed = [one.id for one in snapshots(aws, owned) if one.image not in kept]
    told = [
        *(refused(aws, "ec2.deregister_image", ImageId=id) for id in ids),
        *(refused(aws, "ec2.delete_snapshot", SnapshotId=id) for id in doomed),
    ]
    left = [one.id for one in baked(aws, owned) if one.id in ids]
    left += [one.id for one in snapshots(aws, owned) if one.id in doomed]
    if left:
        words = "; ".join(one for one in told if one) or "AWS does not say why"
        raise CloudError(f"still there, and costing: {', '.join(left)}: {words}")


def refused(aws: Aws, action: str, **what: str) -> str:
    """Why AWS did not do something; empty: it did, or that was done already."""
    try:
        aws.call(action, **what)
    except CloudError as error:
        return "" if error.code in GONE else str(error)
    return ""
