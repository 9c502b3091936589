"""A reader who types what the document says gets what it says, against moto's server."""

import re
import shlex
import subprocess
from pathlib import Path

from cluster.ec2.cloud import everything

DOCS = Path(__file__).parents[3] / "docs"
HEADING = "## A rehearsal that costs nothing"
LAST = "verified: nothing in us-east-1 carries the tags of atomo, owner user/moto, any more"


def rehearsal():
    """The section of whichever document has it."""
    (text,) = [path.read_text() for path in DOCS.glob("cluster*.md") if HEADING in path.read_text()]
    return text.partition(HEADING)[2].partition("\n## ")[0]


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
