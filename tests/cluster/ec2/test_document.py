"""The commands of the page on EC2 print the output that the page shows, against moto's server."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from cluster.ec2.support.cloud import everything

import atomo_cluster.ec2
from atomo_cluster.ec2.aws import client
from atomo_cluster.ec2.aws.master_policy import master_policy
from atomo_cluster.ec2.aws.policy import USES, policy
from atomo_cluster.ec2.aws.policy_scope import scope_of
from atomo_cluster.ec2.commands.planning.policy_size import compact
from atomo_cluster.ec2.settings.cluster import Cluster

DOCS = Path(__file__).parents[3] / "docs"
HEADING = "## A rehearsal that costs nothing"
LAST = "verified: nothing in us-east-1 carries the tags of atomo, owner user/moto, any more"


def rehearsal():
    """Returns the section on the rehearsal, from the page that has it."""
    (text,) = [path.read_text() for path in DOCS.glob("cluster*.md") if HEADING in path.read_text()]
    return text.partition(HEADING)[2].partition("\n## ")[0]


@pytest.mark.slow
def test_the_rehearsal(ec2, cloud, folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    (folder / "cluster.yaml").unlink()
    before = everything(cloud)
    said = []
    for line in re.findall(r"^(?:python tools/pytorch_ec2.py|sed) .*$", rehearsal(), re.MULTILINE):
        words = shlex.split(line, comments=True)
        if words[0] == "sed":
            subprocess.run(words, check=True)
        elif "--hostfile" not in words:
            done = ec2(*words[2:], answer="y\n")
            assert done.code == 0, f"{line}: {done.err}"
            said.append(done.out)
    assert len(said) > 10
    assert LAST in said[-1]
    assert LAST in rehearsal()
    assert everything(cloud) == before


def test_virtual_hosts_of_the_rehearsal_have_their_keys_in_the_folder_that_down_removes():
    """Each `up` makes other hosts at the same addresses: their pinned keys go with them."""
    commands = [line for line in re.sub(r"\\\n *", "", rehearsal()).splitlines()
                if "pytorch_ec2.py" in line and "--hostfile clusters/virtual/" in line]  # fmt: skip
    assert len(commands) == 3
    for line in commands:
        words = shlex.split(line)
        assert words[words.index("--state-dir") + 1] == "clusters/virtual/state"


ANA = "arn:aws:iam::123456789012:user/ana"
FULL = {"supervise": True, "results": "s3://box/x", "connect": "ssm", "efa": True,
        "placement_group": True, "storage": "fsx:fs-01234567"}  # fmt: skip


def granted():
    """Returns the actions of the policies of the user and of the master, with all that there is."""
    clusters = Cluster(**FULL), Cluster(nfs_ip_address="10.1.2.3")
    scopes = [scope_of(cluster, ANA) for cluster in clusters]
    documents = [policy(scope, USES) for scope in scopes] + [master_policy(scopes[0])]
    return {action for document in documents for one in document["Statement"]
            for action in one["Action"]}  # fmt: skip


def test_the_document_shows_the_policy_that_is_printed():
    text = (DOCS / "cluster-ec2.md").read_text()
    shown = json.loads(text.partition("```json\n")[2].partition("```")[0])
    scope = scope_of(Cluster(), ANA)
    assert shown == json.loads(
        json.dumps(compact(policy(scope, ["launch", "bootstrap", "train", "shutdown"])))
    )


SERVICES = {"efs": "elasticfilesystem", "service-quotas": "servicequotas"}


def test_the_policy_allows_every_call_that_there_is():
    source = "".join(
        path.read_text() for path in Path(atomo_cluster.ec2.__file__).parent.rglob("*.py")
    )
    source = source.replace('f"ec2.authorize_security_group_{direction}"', "")
    calls = re.findall(
        r'"(ec2|sts|ssm|efs|iam|pricing|scheduler|service-quotas)\.([a-z_]+)"', source
    )
    calls += [("ec2", "authorize_security_group_ingress"), ("ec2", "describe_volumes")]
    assert len(calls) > 30
    allowed = granted()
    for service, operation in calls:
        name = "".join(word.capitalize() for word in operation.split("_"))
        action = f"{SERVICES.get(service, service)}:{name}"
        assert action in allowed or name in ("Connect", "GetCallerIdentity"), action


def test_a_hint_about_permissions_names_the_command_that_prints_the_policy():
    assert "`iam` prints a policy" in client.DENIED
    assert not [hint for hint in client.HINTS.values() if "docs/" in hint]  # a wheel has no pages
    assert granted()
