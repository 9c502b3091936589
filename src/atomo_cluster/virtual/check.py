"""A check that this machine can run a virtual cluster, with remedies."""

import os
import subprocess
from pathlib import Path

from atomo_cluster.errors import Failed
from atomo_cluster.virtual.namespaces import unshare
from atomo_cluster.virtual.programs import find, missing, run

__all__ = ["has_netem", "obstacles", "owner"]

TRY_S = 60.0
SYSCTLS = {  # settings that disable unprivileged user namespaces, with the disabling value
    "kernel/unprivileged_userns_clone": "0",
    "kernel/apparmor_restrict_unprivileged_userns": "1",
    "user/max_user_namespaces": "0",
}


def owner() -> tuple[int, int] | None:
    """Returns the user and group for a user namespace; None for root, which needs none."""
    return (os.geteuid(), os.getegid()) if os.geteuid() else None


def obstacles() -> list[str]:
    """Lists the obstacles to a cluster on this machine, each with its remedy."""
    if absent := missing():
        return [f"missing: {program}" for program in absent]
    command = [*unshare("net", "uts", own_user=owner() is not None), "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TRY_S)
    except subprocess.TimeoutExpired:
        return [f"`{' '.join(command)}` does not end within {TRY_S:g} s"]
    if not done.returncode:
        return []
    return [f"namespaces are not allowed here ({done.stderr.strip()}): {remedy()}"]


def remedy() -> str:
    """Returns how to get permission to make namespaces."""
    if os.geteuid() == 0:
        return (
            "this root lacks CAP_SYS_ADMIN or CAP_NET_ADMIN, as in a container that was started "
            "without --privileged"
        )
    for name, off in SYSCTLS.items():
        path = Path("/proc/sys") / name
        if path.exists() and path.read_text().strip() == off:
            value = {"0": "1", "1": "0"}[off] if "max" not in name else "10000"
            return f"run it as root, or `sudo sysctl -w {name.replace('/', '.')}={value}`"
    return "run it as root, or allow unprivileged user namespaces"


def has_netem() -> bool:
    """True if this kernel can delay packets; tried in a network namespace of its own."""
    tc = [find("tc") or "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    try:
        run(*unshare("net", own_user=owner() is not None), *tc)
    except Failed:
        return False
    return True
