"""Images that AWS and Canonical publish, and images by identifier."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.places.instance_types import InstanceType
from atomo_cluster.ec2.settings.terms import LATEST
from atomo_cluster.errors import CloudError, ConfigError

__all__ = ["Image", "find_image", "image"]


@dataclass(frozen=True)
class Image:
    """A machine image (AMI)."""

    id: str
    name: str
    architecture: str
    root_device: str
    root_gb: int


# The newest image in the account's region is taken; AWS keeps old names for long.
GPU_PARAMETERS: Final = tuple(
    f"/aws/service/deeplearning/ami/{{0}}/base-oss-nvidia-driver-gpu-ubuntu-{version}/latest/ami-id"
    for version in ("24.04", "22.04")
)
PLAIN_PARAMETERS: Final = tuple(
    f"/aws/service/canonical/ubuntu/server/{version}/stable/current/{{1}}/hvm/ebs-{disk}/ami-id"
    for version, disk in (("24.04", "gp3"), ("22.04", "gp2"))
)
GPU_NAMES: Final = "Deep Learning * OSS Nvidia Driver GPU AMI (Ubuntu *) *"


def find_image(aws: Aws, image_id: str, machine: InstanceType) -> Image:
    """Returns the image with this identifier, or the latest image that suits an instance type.

    Raises:
        ConfigError: there is no such image.
        CloudError: AWS failed.
    """
    chosen = latest(aws, machine) if image_id == LATEST else image_id
    described = aws.constant("ec2.describe_images", "Images", ImageIds=[chosen])
    if not described:
        raise ConfigError(f"image_id {chosen}: region {aws.region} has no such image")
    return image(described[0])


def latest(aws: Aws, machine: InstanceType) -> str:
    """Finds the newest deep-learning image for a GPU type, or the newest Ubuntu for others."""
    names = GPU_PARAMETERS if machine.gpus else PLAIN_PARAMETERS
    debian_architecture = {"x86_64": "amd64"}.get(machine.architecture, machine.architecture)
    images_by_name = parameters(
        aws, [name.format(machine.architecture, debian_architecture) for name in names]
    )
    if images_by_name:
        return images_by_name[0]
    filters = [
        {"Name": "name", "Values": [GPU_NAMES]},
        {"Name": "architecture", "Values": [machine.architecture]},
        {"Name": "state", "Values": ["available"]},
    ]
    listed = list(aws.constant("ec2.describe_images", "Images", Owners=["amazon"], Filters=filters))
    if not listed:
        raise ConfigError(
            f"image_id {LATEST}: AWS names no image for {machine.type} in {aws.region}; look one "
            "up in the EC2 console and give its ami-..."
        )
    return str(max(listed, key=lambda description: description["CreationDate"])["ImageId"])


def parameters(aws: Aws, names: list[str]) -> list[str]:
    """Returns the values of the public parameters that exist, in the order of `names`."""
    try:
        listed = aws.constant("ssm.get_parameters", "Parameters", Names=names)
    except CloudError:
        return []  # not permitted, or not in this region: there is another way
    values = {parameter["Name"]: parameter["Value"] for parameter in listed}
    return [values[name] for name in names if name in values]


def image(described: Mapping[str, Any]) -> Image:
    """Parses the description of an image."""
    root = described.get("RootDeviceName", "/dev/sda1")
    disks = described.get("BlockDeviceMappings", [])
    sizes = [disk.get("Ebs", {}).get("VolumeSize", 0) for disk in disks
             if disk.get("DeviceName") == root]  # fmt: skip
    return Image(
        id=described["ImageId"],
        name=described.get("Name", ""),
        architecture=described.get("Architecture", ""),
        root_device=root,
        root_gb=max(sizes, default=0),
    )
