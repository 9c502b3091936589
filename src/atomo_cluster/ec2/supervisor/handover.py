"""Handover from the user's machine to the master: settings, job and ledger."""

import json
import os
import shlex
import uuid
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Final

from atomo_cluster.ec2.hosts.checkout import pack_files
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.ledger import read_entries
from atomo_cluster.ec2.settings.cluster import Cluster

__all__ = ["FOLDER", "STORY", "master_settings", "package"]

FOLDER: Final = ".atomo/supervisor"  # below the home folder of the master
STORY: Final = f"{FOLDER}/story.jsonl"
KEY: Final = "~/.ssh/atomo_cluster"


def package(run: Run, words: Sequence[str]) -> bytes:
    """Packs the inputs of the supervisor, as tar."""
    settings = master_settings(
        run.cluster, run.owned.owner, run.cluster.key_name or run.owned.label
    )
    entries = [asdict(entry) for entry in read_entries(run.cluster, run.owned.owner).values()]
    known_hosts = run.cluster.state / "known_hosts"
    return pack_files({
        "known_hosts": known_hosts.read_text() if known_hosts.exists() else "",
        "cluster.yaml": json.dumps({field.name: getattr(settings, field.name)
                                    for field in fields(settings)}),
        "hosts.json": json.dumps(entries),
        "run.sh": script(run.options.endpoint_url or os.environ.get("AWS_ENDPOINT_URL"), words),
    })  # fmt: skip


def master_settings(cluster: Cluster, owner: str, key_name: str) -> Cluster:
    """Returns the settings for the master, which reaches hosts by their private addresses."""
    return replace(
        cluster, owner=owner, key_name=key_name, path_to_keyfile=KEY, private_addresses=True,
        ssh_config="", state_dir=f"~/{FOLDER}",
    )  # fmt: skip


def script(endpoint_url: str | None, words: Sequence[str]) -> str:
    """Returns the script that the master runs in the checkout."""
    line = ["tools/pytorch_ec2.py", "supervise", "--job", uuid.uuid4().hex[:12]]
    line += ["--endpoint-url", endpoint_url] if endpoint_url else []
    config = f'--config "$HOME/{FOLDER}/cluster.yaml"'
    return f'exec "$ATOMO_PYTHON" {shlex.join(line)} {config} -- {shlex.join(words)}\n'
