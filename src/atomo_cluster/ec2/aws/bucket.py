"""A prefix of an S3 bucket as a folder: listing, upload and download."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Final, final

from atomo_cluster.ec2.aws.client import Aws

__all__ = ["Bucket", "StoredFile"]

CHUNK: Final = 2**20


@dataclass(frozen=True)
class StoredFile:
    """A file in the bucket."""

    size: int
    when: datetime  # it was put there
    mark: str  # changes with the content: S3's ETag


@final
class Bucket:
    """`s3://BUCKET/PREFIX`. The bucket must exist; nothing in it is ever deleted."""

    def __init__(self, aws: Aws, url: str) -> None:
        self._aws = aws
        self.name, _, prefix = url.removeprefix("s3://").partition("/")
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def listed(self) -> dict[str, StoredFile]:
        """Lists the files, by path below the prefix.

        Raises:
            CloudError: the bucket does not exist, or cannot be read.
        """
        objects = self._aws.pages(
            "s3.list_objects_v2", "Contents", Bucket=self.name, Prefix=self.prefix
        )
        return {
            stored["Key"].removeprefix(self.prefix): StoredFile(
                stored["Size"], stored["LastModified"], stored["ETag"]
            )
            for stored in objects
        }

    def put(self, path: Path, name: str) -> None:
        """Uploads a file; S3 verifies its checksum. Large files go in parts.

        Raises:
            CloudError: AWS failed.
        """
        self._aws.transfer("upload_file", str(path), self.name, self.prefix + name)

    def read(self, name: str, mark: str, out: BufferedIOBase, offset: int) -> None:
        """Copies the bytes from `offset` on to `out`, if the content still has this mark.

        Raises:
            CloudError: AWS failed, or the content has changed.
        """
        part: Mapping[str, Any] = {"Range": f"bytes={offset}-"} if offset else {}
        answer = self._aws.call(
            "s3.get_object", Bucket=self.name, Key=self.prefix + name, IfMatch=mark, **part
        )
        self._aws.drain(answer["Body"], out, CHUNK)
