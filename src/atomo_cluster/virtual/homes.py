"""Home folders per host, as on real hosts: files written there stay on that host."""

import shutil
from pathlib import Path

from atomo_cluster.virtual.programs import run
from atomo_cluster.virtual.spec import ClusterFolder

__all__ = ["mount_home"]


def mount_home(place: ClusterFolder, host: str, home: Path) -> None:
    """Mounts a folder of the host over `home`; the folder of clusters stays shared.

    Raises:
        Failed: this kernel has no overlay file systems, or none for unprivileged users.
    """
    own, clusters = place.of(host) / "home", place.folder.parent
    own.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", own)  # a container's own files cannot be the upper layer
    for name in ("upper", "work", "clusters"):
        (own / name).mkdir()
    shutil.copytree(place.ssh, own / "ssh")
    run("mount", "--bind", clusters, own / "clusters")
    layers = {"lowerdir": home, "upperdir": own / "upper", "workdir": own / "work"}
    options = ",".join(f"{name}={folder}" for name, folder in layers.items())
    run("mount", "-t", "overlay", "overlay", "-o", options, home)
    if clusters.is_relative_to(home):  # now hidden below the layer
        run("mount", "--bind", own / "clusters", clusters)
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    # `bootstrap` admits keys and writes a configuration here, which sshd and ssh are to follow.
    for target in (place.ssh, home / ".ssh"):
        run("mount", "--bind", own / "ssh", target)
