"""The place of results: the master's disk, a shared folder that outlives it, or S3."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Final, final

from atomo_cluster.ec2.aws.bucket import Bucket, StoredFile
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import CloudError, ClusterError
from atomo_cluster.plain_files import is_plain

__all__ = ["FETCHED", "LocalResults", "S3Results", "SyncRound", "out_folder"]

FETCHED: Final = ".atomo/fetched"  # `fetch` touches it, once all is on the user's machine
BETWEEN: Final = timedelta(seconds=60)
LAST_S: Final = 160.0  # for the remaining files at the end: less than the margin to a limit
TEMPORARY: Final = ".tmp"


def out_folder(cluster: Cluster, home: Path) -> Path:
    """Returns the folder on the master to which the job writes."""
    return home / cluster.remote_dir / cluster.out_dir  # which may be an absolute path


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields complete files below a folder, oldest first."""
    # A link may lead to a file that is nobody's result.
    paths = [path for path in folder.rglob("*") if is_plain(path) and path.suffix != TEMPORARY]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        yield path.relative_to(folder).as_posix(), path


@final
class LocalResults:
    """Results that stay in the folder of the job."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self._folder, self._mark = out_folder(cluster, home), home / FETCHED
        self._outlives = cluster.outlives

    def sync(self) -> None:
        """Does nothing: the results have no other place."""

    def finish(self) -> None:
        """Does nothing, like `sync`."""

    @property
    def safe(self) -> bool:
        """True if results outlive the master, or `fetch` has downloaded all of them."""
        if self._outlives or not self._mark.exists():
            return self._outlives
        when = self._mark.stat().st_mtime_ns
        return all(path.stat().st_mtime_ns <= when for _, path in files(self._folder))


@dataclass(frozen=True)
class SyncRound:
    """One comparison of the folder with the bucket."""

    begun: datetime
    error: str  # empty: all that there was is stored


@final
class S3Results:
    """Results that are copied to S3 while the job runs; nothing there is ever deleted."""

    def __init__(self, cluster: Cluster, home: Path, bucket: Bucket, story: Path) -> None:
        self._folder, self._bucket, self._story = out_folder(cluster, home), bucket, story
        self._thread: Thread | None = None
        self._last: SyncRound | None = None

    def sync(self) -> None:
        """Stores new results in a background thread, once a minute.

        Raises:
            CloudError: the last round failed; another has begun.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        last, now = self._last, datetime.now(timezone.utc)
        if last is not None and now - last.begun < BETWEEN:
            return
        self._begin()
        if last is not None and last.error:
            raise CloudError(f"results: {last.error}")

    def finish(self) -> None:
        """Stores all present results, as far as LAST_S allows."""
        end = monotonic() + LAST_S
        if self._thread is not None:
            self._thread.join(LAST_S)
        self._begin().join(max(0.0, end - monotonic()))

    @property
    def safe(self) -> bool:
        """True if every file is stored in its present state."""
        if self._last is None or self._last.error:
            return False
        begin = self._last.begun.timestamp()
        return all(path.stat().st_mtime < begin for _, path in files(self._folder))

    def _begin(self) -> Thread:
        self._thread = Thread(target=self._round, daemon=True)
        self._thread.start()
        return self._thread

    def _round(self) -> None:
        begin, error = datetime.now(timezone.utc), ""
        try:
            stored = self._bucket.listed()
            for name, path in files(self._folder):
                if not same(path, stored.get(name)):
                    self._bucket.put(path, name)
            if self._story.exists() and not same(self._story, stored.get(self._story.name)):
                self._bucket.put(self._story, self._story.name)
        except (ClusterError, OSError) as failure:  # a file may have gone meanwhile
            error = str(failure)
        self._last = SyncRound(begin, error)


def same(path: Path, stored: StoredFile | None) -> bool:
    """True if the stored file is up to date: same size, and stored after the last write."""
    if stored is None:
        return False
    there = path.stat()
    return there.st_size == stored.size and there.st_mtime < stored.when.timestamp()
