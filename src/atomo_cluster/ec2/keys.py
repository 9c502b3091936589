"""The private key that reaches a cluster: the user's own, or one made for it. It stays here."""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from atomo_cluster.ec2.config import Cluster
from atomo_cluster.errors import ConfigError

__all__ = ["check_keyfile", "check_state", "derived", "keyfile", "needed", "public_half"]

MADE: Final = "id_ed25519"


def keyfile(cluster: Cluster) -> Path:
    """Where the private key is, or will be."""
    if cluster.path_to_keyfile:
        return Path(cluster.path_to_keyfile).expanduser()
    return cluster.state / MADE


def public_half(cluster: Cluster) -> bytes:
    """The public key; the pair is made on this machine if there is none yet."""
    path = keyfile(cluster)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        comment = f"atomo-{cluster.name}"
        words = ["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
        subprocess.run([needed("ssh-keygen"), *words], check=True, stdin=subprocess.DEVNULL)
    return derived(path)


def check_state(cluster: Cluster) -> None:
    """Makes the folder of a cluster here.

    Raises:
        ConfigError: it cannot be made, or nothing can be written there.
    """
    try:
        cluster.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with TemporaryFile(dir=cluster.state):
            pass
    except OSError as error:
        raise ConfigError(f"state_dir {cluster.state_dir}: {error}; choose another") from error


def derived(path: Path) -> bytes:
    """The public half of a private key.

    Raises:
        ConfigError: it is not a private key that can be read.
    """
    done = subprocess.run(
        [needed("ssh-keygen"), "-y", "-P", "", "-f", str(path)], capture_output=True, check=False
    )
    if done.returncode:
        beside = path.with_name(path.name + ".pub")  # a key with a passphrase: the agent has it
        if beside.exists():
            return beside.read_bytes()
        raise ConfigError(f"path_to_keyfile {path}: {done.stderr.decode().strip()}")
    return done.stdout


def check_keyfile(path: Path) -> str | None:
    """What is wrong with a private key; None: nothing."""
    if not path.exists():
        return f"{path} does not exist"
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return f"{path} may be read by others (mode {mode:o}), so ssh refuses it: chmod 600 {path}"
    if not os.access(path, os.R_OK):
        return f"{path} cannot be read"
    return None


def needed(program: str) -> str:
    """The path of a program of OpenSSH's.

    Raises:
        ConfigError: it is not installed.
    """
    found = shutil.which(program)
    if found is None:
        raise ConfigError(f"{program} is missing here; install the OpenSSH client")
    return found
