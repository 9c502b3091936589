"""Images baked from a cluster's hosts, and their snapshots.

Images outlive the cluster, so they do not carry its tag: only `delete_images` deletes them.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.tags import GPUS, IMAGE, OWNER, ClusterTags, as_dict
from atomo_cluster.ec2.images.published import Image, find_image, image
from atomo_cluster.ec2.places.instance_types import InstanceType
from atomo_cluster.ec2.settings.terms import BAKED
from atomo_cluster.errors import CloudError, ConfigError, LeftBehind

__all__ = ["BakedImage", "Snapshot", "baked", "choose_image", "create", "delete", "snapshots"]

GONE: Final = ("InvalidAMIID.Unavailable", "InvalidAMIID.NotFound", "InvalidSnapshot.NotFound")


@dataclass(frozen=True)
class BakedImage:
    """An image made by `bake`."""

    image: Image
    state: str
    gpus: bool  # whether its host had GPUs, and so a driver
    gb: int  # of its disk, an upper bound on the size of the snapshot
    made: datetime

    @property
    def id(self) -> str:
        return self.image.id


@dataclass(frozen=True)
class Snapshot:
    """The disk of an image."""

    id: str
    gb: int
    made: datetime
    image: str


def image_filters(owned: ClusterTags) -> list[dict[str, Any]]:
    """Returns the filters for the images and snapshots of a cluster."""
    return [{"Name": f"tag:{IMAGE}", "Values": [owned.cluster]},
            {"Name": f"tag:{OWNER}", "Values": [owned.owner]}]  # fmt: skip


def baked(aws: Aws, owned: ClusterTags) -> list[BakedImage]:
    """Lists the images of a cluster, newest first."""
    return newest(
        aws.pages("ec2.describe_images", "Images", Owners=["self"], Filters=image_filters(owned))
    )


def newest(described: Iterable[Mapping[str, Any]]) -> list[BakedImage]:
    """Parses descriptions of images, newest first."""
    return sorted(
        map(from_description, described), key=lambda baked_image: baked_image.made, reverse=True
    )


def from_description(described: Mapping[str, Any]) -> BakedImage:
    """Parses the description of a baked image."""
    base = image(described)
    return BakedImage(
        image=base,
        state=described["State"],
        gpus=as_dict(described).get(GPUS) == "yes",
        gb=base.root_gb,
        made=datetime.fromisoformat(described["CreationDate"].replace("Z", "+00:00")),
    )


def snapshots(aws: Aws, owned: ClusterTags) -> list[Snapshot]:
    """Lists the snapshots of a cluster's images, including images that no longer exist."""
    descriptions = aws.pages(
        "ec2.describe_snapshots", "Snapshots", OwnerIds=["self"], Filters=image_filters(owned)
    )
    return [
        Snapshot(
            description["SnapshotId"],
            int(description["VolumeSize"]),
            description["StartTime"],
            named_in(description),
        )
        for description in descriptions
    ]


def named_in(described: Mapping[str, Any]) -> str:
    """Finds the image in the text of a snapshot: `Created by CreateImage(i-1) for ami-1`."""
    last = str(described.get("Description", "")).rpartition(" for ")[2].split()
    return last[0] if last and last[0].startswith("ami-") else ""


def choose_image(aws: Aws, owned: ClusterTags, image_id: str, machine: InstanceType) -> Image:
    """Returns the image for a type: by identifier, the latest of AWS, or the newest baked one.

    Raises:
        ConfigError: there is no such image.
    """
    if image_id != BAKED:
        return find_image(aws, image_id, machine)
    query = {"Owners": ["self"], "Filters": image_filters(owned)}
    suited = [
        candidate
        for candidate in newest(aws.constant("ec2.describe_images", "Images", **query))
        if candidate.state == "available"
        and candidate.image.architecture == machine.architecture
        and (candidate.gpus or not machine.gpus)
    ]
    if not suited:
        kind = f"{machine.architecture}, with a driver for GPUs" if machine.gpus else (
            machine.architecture)  # fmt: skip
        raise ConfigError(
            f"image_id {BAKED}: {owned.cluster} has no image in {aws.region} for {machine.type} "
            f"({kind}); launch with image_id latest, then `bootstrap` and `bake` make one"
        )
    return min(suited, key=lambda baked_image: baked_image.gpus != bool(machine.gpus)).image


def create(aws: Aws, owned: ClusterTags, instance: str, gpus: bool) -> str:
    """Makes an image of a host, which EC2 restarts; returns its identifier.

    Raises:
        CloudError: EC2 refused, and there is no image.
        LeftBehind: an image may exist.
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
        if same_name := images_named(aws, owned, name, error):
            return same_name[0]  # the answer was lost
        raise
    return str(made["ImageId"])


def images_named(aws: Aws, owned: ClusterTags, name: str, cause: CloudError) -> list[str]:
    """Returns the images of a name, after a failed call."""
    try:
        return [
            baked_image.id for baked_image in baked(aws, owned) if baked_image.image.name == name
        ]
    except CloudError as error:
        raise LeftBehind(
            f"{cause}; and AWS does not say whether there is an image {name} now, which costs "
            f"({error}): `status` shows it later, `delete_images` deletes"
        ) from cause


def delete(aws: Aws, owned: ClusterTags, ids: Sequence[str]) -> None:
    """Deletes images and their snapshots, and verifies it.

    Raises:
        CloudError: some still exist; the message names them.
    """
    kept_images = {stored.id for stored in baked(aws, owned)} - set(ids)
    doomed = [stored.id for stored in snapshots(aws, owned) if stored.image not in kept_images]
    errors = [
        *(refusal_of(aws, "ec2.deregister_image", ImageId=id) for id in ids),
        *(refusal_of(aws, "ec2.delete_snapshot", SnapshotId=id) for id in doomed),
    ]
    remaining = [stored.id for stored in baked(aws, owned) if stored.id in ids]
    remaining += [stored.id for stored in snapshots(aws, owned) if stored.id in doomed]
    if remaining:
        words = "; ".join(stored for stored in errors if stored) or "AWS does not say why"
        raise CloudError(f"still there, and costing: {', '.join(remaining)}: {words}")


def refusal_of(aws: Aws, action: str, **parameters: str) -> str:
    """Calls AWS and returns its refusal; empty if the call succeeded or its work was done."""
    try:
        aws.call(action, **parameters)
    except CloudError as error:
        return "" if error.code in GONE else str(error)
    return ""
