"""Transfers of files from results and to hosts; both resume after an interruption."""

import hashlib
import os
import shlex
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from signal import SIGKILL
from threading import Timer
from typing import Final, Protocol, final, runtime_checkable

from atomo_cluster.ec2.aws.bucket import Bucket
from atomo_cluster.ec2.hosts.ssh import Host, Ssh, host_label
from atomo_cluster.errors import ConfigError, RemoteError
from atomo_cluster.plain_files import append_plain

__all__ = ["HostSource", "RemoteFile", "S3Source", "Source", "fetch", "send"]

LARGE: Final = 8 * 2**20  # bytes from which a file is worth going on with
PART: Final = ".part"
LIST_S: Final = 300.0
LEAST_S: Final = 600.0  # for any transfer,
SLOWEST: Final = 2**14  # and a second more for as many bytes
KILLED_S: Final = 10.0  # for the end of a program that was killed
Say = Callable[[str], None]


@dataclass(frozen=True)
class RemoteFile:
    """A remote file."""

    size: int
    when: float  # it was written, seconds since 1970
    mark: str  # of its content


@runtime_checkable
class Source(Protocol):
    """A source of files."""

    def listed(self) -> dict[str, RemoteFile]: ...
    def read(self, name: str, far: RemoteFile, out: BufferedIOBase, offset: int) -> None: ...


@final
class S3Source:
    """A prefix of a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def listed(self) -> dict[str, RemoteFile]:
        """Lists the files."""
        stored = self._bucket.listed()
        return {
            name: RemoteFile(entry.size, entry.when.timestamp(), entry.mark)
            for name, entry in stored.items()
        }

    def read(self, name: str, far: RemoteFile, out: BufferedIOBase, offset: int) -> None:
        """Copies a file from `offset` on."""
        self._bucket.read(name, far.mark, out, offset)


@final
class HostSource:
    """A folder of a host."""

    def __init__(self, ssh: Ssh, host: Host, folder: str) -> None:
        self._ssh, self._host, self._folder = ssh, host, folder
        self.begun = ""  # the time there at the last listing

    def listed(self) -> dict[str, RemoteFile]:
        """Lists the complete files; none if the folder does not exist."""
        folder = shlex.quote(self._folder)
        find = "find . -type f ! -name '*.tmp' ! -name '*.part' -printf '%s %T@ %P\\0'"
        command = f"date +%s.%N && {{ cd {folder} 2>/dev/null || exit 0; }} && {find}"
        output = self._ssh.run(self._host, command, timeout_s=LIST_S).checked("listing files")
        self.begun, _, listing = output.partition("\n")
        records = [line.split(" ", 2) for line in listing.split("\0") if line]
        return {
            name: RemoteFile(int(size), float(when), f"{size} {when}")
            for size, when, name in records
        }

    def read(self, name: str, far: RemoteFile, out: BufferedIOBase, offset: int) -> None:
        """Copies a file from `offset` on, up to its length at the last listing."""
        path = shlex.quote(f"{self._folder}/{name}")
        size = f"skip={offset} count={far.size - offset}"
        command = f"dd if={path} bs=1M iflag=skip_bytes,count_bytes {size} status=none"
        out.flush()
        bound_s, doing = transfer_s(far.size - offset), f"reading {name}"
        with within(self._host, doing, bound_s):
            done = subprocess.run(
                self._ssh.words(self._host, command), stdin=subprocess.DEVNULL,
                stdout=out.fileno(), stderr=subprocess.PIPE, check=False, timeout=bound_s,
            )  # fmt: skip
        if done.returncode:
            complaint = done.stderr.decode(errors="replace").strip()
            raise RemoteError(f"{host_label(self._host)}: {doing}: {complaint}")


def transfer_s(size: int) -> float:
    """Returns the most seconds that a transfer of some bytes may take."""
    return LEAST_S + size / SLOWEST


@contextmanager
def within(host: Host, doing: str, bound_s: float) -> Iterator[None]:
    """Raises RemoteError where a transfer takes too long: a host may answer and do nothing."""
    try:
        yield
    except subprocess.TimeoutExpired as error:
        raise RemoteError(
            f"{host_label(host)}: {doing}: not done within {bound_s:.0f} s; the same command "
            "continues"
        ) from error


def fetch(source: Source, folder: Path, say: Say) -> list[str]:
    """Downloads every file that is missing or different here; returns the names.

    Raises:
        RemoteError, CloudError: the connection broke; a repeated call resumes.
    """
    listed = source.listed()
    missing = {name: far for name, far in listed.items() if not is_current(folder, name, far)}
    for number, (name, far) in enumerate(missing.items(), 1):
        say(f"{number} of {len(missing)}  {name}  {far.size / 2**20:.1f} MiB")
        fetch_one(source, folder, name, far)
    return list(missing)


def inside(folder: Path, name: str) -> Path:
    """Returns the local path of a file.

    Raises:
        ConfigError: the name leads out of the folder.
    """
    path = folder / name
    led = path.parent.resolve().is_relative_to(folder.resolve())  # a folder may be a link
    if name.startswith("/") or ".." in Path(name).parts or not led:
        raise ConfigError(f"{name!r} would be written outside of {folder}")
    return path


def is_current(folder: Path, name: str, far: RemoteFile) -> bool:
    """True if the local file equals the remote one in size and time."""
    path = inside(folder, name)
    if not path.is_file():
        return False
    status = path.stat()
    return status.st_size == far.size and abs(status.st_mtime - far.when) < 1e-3


def fetch_one(source: Source, folder: Path, name: str, far: RemoteFile) -> None:
    """Downloads a file, under a temporary name until it is complete."""
    path = inside(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = hashlib.sha256(far.mark.encode()).hexdigest()[:12]
    part = path.with_name(f".{path.name}.{content}{PART}")
    with append_plain(part) as out:
        offset = out.tell()
        if offset < far.size:
            source.read(name, far, out, offset)
    if part.stat().st_size != far.size:
        part.unlink()
        raise RemoteError(f"{name}: it came with another length than it has there; once more")
    os.utime(part, (far.when, far.when))
    part.replace(path)


def send(ssh: Ssh, host: Host, source: Path, folder: str, say: Say) -> list[str]:
    """Uploads the files that are missing or different in a folder of a host; returns the names.

    Raises:
        RemoteError: the connection broke; a repeated call resumes.
    """
    there = HostSource(ssh, host, folder).listed()
    missing = {name: path for name, path in local_files(source) if differs(path, there.get(name))}
    large = {name: path for name, path in missing.items() if path.stat().st_size >= LARGE}
    small = {name: path for name, path in missing.items() if name not in large}
    if small:
        say(f"{host.name}: {len(small)} small files")
        send_small(ssh, host, small, folder)
    for number, (name, path) in enumerate(large.items(), 1):
        say(f"{host.name}: {number} of {len(large)}  {name}  {path.stat().st_size >> 20} MiB")
        send_large(ssh, host, path, f"{folder}/{name}")
    return list(missing)


def local_files(source: Path) -> Iterator[tuple[str, Path]]:
    """Yields the files below a folder, or a single file, with their remote names."""
    if source.is_file():
        yield source.name, source
        return
    for path in sorted(source.rglob("*")):
        if path.is_file():
            yield path.relative_to(source).as_posix(), path


def differs(path: Path, far: RemoteFile | None) -> bool:
    """True if a file is missing or different there; times are compared in whole seconds."""
    status = path.stat()
    return far is None or far.size != status.st_size or int(far.when) != int(status.st_mtime)


def send_small(ssh: Ssh, host: Host, files: Mapping[str, Path], folder: str) -> None:
    """Uploads small files as one tar stream; an interrupted file has the wrong length."""
    quoted_folder = shlex.quote(folder)
    line = ssh.words(host, f"mkdir -p {quoted_folder} && tar -xf - -C {quoted_folder}")
    bound_s = transfer_s(sum(path.stat().st_size for path in files.values()))
    with subprocess.Popen(line, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        watch = Timer(bound_s, process.kill)  # a host that takes no more blocks the writes too
        watch.start()
        try:
            with suppress(BrokenPipeError), tarfile.open(fileobj=process.stdin, mode="w|") as tar:
                for name, path in files.items():
                    tar.add(path, arcname=name, recursive=False)
            _, stderr = process.communicate(timeout=bound_s + KILLED_S)
        finally:
            watch.cancel()
    if process.returncode == -SIGKILL:
        raise RemoteError(f"{host_label(host)}: not done within {bound_s:.0f} s; the same command "
                          "continues")  # fmt: skip
    if process.returncode:
        raise RemoteError(f"{host_label(host)}: {stderr.decode(errors='replace').strip()}")


def send_large(ssh: Ssh, host: Host, path: Path, name: str) -> None:
    """Uploads a file under a temporary name and resumes an interrupted upload."""
    status = path.stat()
    part = shlex.quote(f"{name}.{status.st_size}.{int(status.st_mtime)}{PART}")
    folder = shlex.quote(name.rpartition("/")[0])
    size = ssh.run(host, f"mkdir -p {folder} && stat -c %s {part} 2>/dev/null || echo 0")
    offset = int(size.checked("looking for a part"))
    finish = f"touch -d @{int(status.st_mtime)} {part} && mv {part} {shlex.quote(name)}"
    command = f"cat >>{part} && [ $(stat -c %s {part}) = {status.st_size} ] && {finish}"
    with path.open("rb") as source:
        source.seek(offset)
        bound_s = transfer_s(status.st_size - offset)
        with within(host, name, bound_s):
            done = subprocess.run(ssh.words(host, command), stdin=source, capture_output=True,
                                  check=False, timeout=bound_s)  # fmt: skip
    if done.returncode:
        complaint = done.stderr.decode(errors="replace").strip() or "it has another length there"
        raise RemoteError(f"{host_label(host)}: {name}: {complaint}; the same command continues")
