"""The ssh commands of pytorch_ec2.py, over hosts that are as far apart as real ones."""

import getpass
import json
import os
from pathlib import Path

import pytest
from cluster.virtual.vc import ROOT, Tool

OWN_HOMES = os.geteuid() == 0 and "overlay" in Path("/proc/filesystems").read_text()
WHY_NOT = "NOT TESTED: hosts with home folders of their own take root and overlay file systems"
pytestmark = [pytest.mark.skipif(not OWN_HOMES, reason=WHY_NOT), pytest.mark.slow]
HOSTS = ["h1", "h2"]
ADDRESSES = ["10.77.0.1", "10.77.0.2"]
LAPTOP = "h3"
CHECKOUT = "atomo-on-virtual-hosts"


class Laptop:
    """The user's machine: a third host, from which pytorch_ec2.py reaches the two others."""

    def __init__(self, tool: Tool, folder: Path) -> None:
        self.tool = tool
        self.key = tool.clusters / "virtual" / "ssh" / "id_ed25519"
        machines = folder / "machines"
        machines.write_text("\n".join(ADDRESSES) + "\n")
        self.options = [f"--hostfile={machines}", "--name=lab", f"--state-dir={folder / 'state'}"]
        self.options += [f"--ssh-username={getpass.getuser()}", f"--path-to-keyfile={self.key}"]
        self.options += [f"--remote-dir={CHECKOUT}"]

    def __call__(self, command: str, *words: str) -> str:
        line = ["python", str(ROOT / "tools/pytorch_ec2.py"), command, *self.options, *words]
        return self.tool.does("exec", LAPTOP, *line)

    def on(self, name: str, *command: str) -> str:
        """Returns the output of a command on a host."""
        return self.tool.does("exec", name, *command)


def test_fresh_hosts_become_a_cluster_that_trains(tool, environment, tmp_path):
    home = sorted(path.name for path in Path.home().iterdir())
    tool.environment |= environment
    tool.does("up", "--hosts", "3", "--rate", "1gbit", "--own-homes")
    laptop = Laptop(tool, tmp_path)
    mine = laptop.key.read_text()

    ready = json.loads(laptop("bootstrap", "--wait=30", "--json"))
    assert [host["address"] for host in ready["hosts"]] == ADDRESSES
    (link,) = ready["links"]  # which has 1 Gbit/s
    assert 0.01 < link["gbit_s"] < 1.1
    assert link["kernel"] > 0.9
    keys = {laptop.on(name, "bash", "-c", "cat ~/.ssh/atomo_cluster") for name in HOSTS}
    assert len(keys) == 1
    assert mine.strip() not in keys
    for name in HOSTS:  # by the cluster's key, with host keys that are known
        for other in ADDRESSES:
            key = "IdentityFile=~/.ssh/atomo_cluster"
            laptop.on(name, "ssh", "-o", key, "-o", "BatchMode=yes", other, "true")

    told = json.loads(
        laptop("run_command", "all", f"hostname; cat {CHECKOUT}/hosts_address", "--json")
    )
    assert [host["out"].split() for host in told] == [
        ["h1", *ADDRESSES],
        ["h2", *ADDRESSES],
    ]
    found = json.loads(laptop("status", "--json"))["hosts"]
    assert [(host["address"], host["state"]) for host in found] == [
        (address, "idle") for address in ADDRESSES
    ]
    before = tool.host("h2")["received_bytes"]
    few = ("--network=LeNet", "--batch-size=8", "--threads=1", "--max-steps=3")
    laptop("train", "--", *few, "--down=weights")
    steps = laptop.on("h1", "bash", "-c", f"cat ~/{CHECKOUT}/runs/job-*/metrics.jsonl").splitlines()
    assert [json.loads(step)["step"] for step in steps] == [1, 2, 3]
    weights = 4 * 431_080 * 3  # bytes that went to the worker on the other host
    assert tool.host("h2")["received_bytes"] - before > weights
    assert sorted(path.name for path in Path.home().iterdir()) == home
