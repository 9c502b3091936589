"""The private key that reaches a cluster: the user's, or one made for it. It stays local."""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import ConfigError

__all__ = [
    "check_keyfile",
    "check_state",
    "keyfile",
    "public_half",
    "public_key_of",
    "require_program",
]

MADE: Final = "id_ed25519"
KEYGEN_S: Final = 60.0


def keyfile(cluster: Cluster) -> Path:
    """Returns the path of the private key, which may not exist yet."""
    if cluster.path_to_keyfile:
        return Path(cluster.path_to_keyfile).expanduser()
    return cluster.state / MADE


def public_half(cluster: Cluster) -> bytes:
    """Returns the public key; makes the pair locally if there is none yet."""
    path = keyfile(cluster)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        comment = f"atomo-{cluster.name}"
        words = ["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
        subprocess.run(
            [require_program("ssh-keygen"), *words], check=True, stdin=subprocess.DEVNULL,
            timeout=KEYGEN_S,
        )  # fmt: skip
    return public_key_of(path)


def check_state(cluster: Cluster) -> None:
    """Makes the local folder of a cluster.

    Raises:
        ConfigError: the folder cannot be made or written to.
    """
    try:
        cluster.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with TemporaryFile(dir=cluster.state):
            pass
    except OSError as error:
        raise ConfigError(f"state_dir {cluster.state_dir}: {error}; choose another") from error


def public_key_of(path: Path) -> bytes:
    """Derives the public key from a private key.

    Raises:
        ConfigError: the file is not a readable private key.
    """
    words = [require_program("ssh-keygen"), "-y", "-P", "", "-f", str(path)]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=KEYGEN_S
        )
    except subprocess.TimeoutExpired as error:  # a pipe, or a folder that does not answer
        raise ConfigError(
            f"path_to_keyfile {path}: ssh-keygen cannot read it within {KEYGEN_S:g} s"
        ) from error
    if done.returncode:
        beside = path.with_name(path.name + ".pub")  # a key with a passphrase: the agent has it
        if beside.exists():
            return beside.read_bytes()
        raise ConfigError(f"path_to_keyfile {path}: {done.stderr.decode().strip()}")
    return done.stdout


def check_keyfile(path: Path) -> str | None:
    """Returns the problem of a private key; None if there is none."""
    if not path.exists():
        return f"{path} does not exist"
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return f"{path} may be read by others (mode {mode:o}), so ssh refuses it: chmod 600 {path}"
    if not os.access(path, os.R_OK):
        return f"{path} cannot be read"
    return None


def require_program(program: str) -> str:
    """Returns the path of an OpenSSH program.

    Raises:
        ConfigError: the program is not installed.
    """
    path = shutil.which(program)
    if path is None:
        raise ConfigError(f"{program} is missing here; install the OpenSSH client")
    return path
