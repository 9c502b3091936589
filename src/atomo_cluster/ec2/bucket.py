"""A prefix in a bucket of S3 as a folder: what it has, and files to and from there."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Final, final

from atomo_cluster.ec2.aws import Aws

__all__ = ["Bucket", "Stored"]

CHUNK: Final = 2**20


@dataclass(frozen=True)
class Stored:
    """A file in the bucket."""

    size: int
    when: datetime  # it was put there
    mark: str  # changes with the content: S3's ETag


@final
class Bucket:
    """`s3://BUCKET/PREFIX`. The bucket is there, and is never deleted, nor is anything in it."""

    def __init__(self, aws: Aws, where: str) -> None:
        self._aws = aws
        self.name, _, prefix = where.removeprefix("s3://").partition("/")
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def listed(self) -> dict[str, Stored]:
        """What there is, by path below the prefix.

        Raises:
            CloudError: there is no such bucket, or it may not be read.
        """
        found = self._aws.pages(
            "s3.list_objects_v2", "Contents", Bucket=self.name, Prefix=self.prefix
        )
        return {
            one["Key"].removeprefix(self.prefix): Stored(
                one["Size"], one["LastModified"], one["ETag"]
            )
            for one in found
        }

    def put(self, path: Path, name: str) -> None:
        """Stores a file, whose checksum S3 compares; a large one in parts.

        Raises:
            CloudError: AWS failed.
        """
        self._aws.transfer("upload_file", str(path), self.name, self.prefix + name)

    def read(self, name: str, mark: str, out: BufferedIOBase, offset: int) -> None:
        """Writes what follows `offset`, of that content alone.

        Raises:
            CloudError: AWS failed, or the content is another by now.
        """
        part: Mapping[str, Any] = {"Range": f"bytes={offset}-"} if offset else {}
        answer = self._aws.call(
            "s3.get_object", Bucket=self.name, Key=self.prefix + name, IfMatch=mark, **part
        )
        self._aws.drain(answer["Body"], out, CHUNK)
