"""Commands start without large packages: no PyTorch, and under 100 MB with all of AWS's
descriptions.

How long they take to start is `benchmarks/cluster_commands.py`'s to say.
"""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

LARGEST_MB = 100
HEAVY = {"torch", "numpy", "numba", "scipy", "mpi4py", "pandas", "atomo"}
EVERYTHING = """
import json, sys
from contextlib import suppress
from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.cli import COMMANDS, main

for name in COMMANDS:
    with suppress(SystemExit):
        main([name, "--help"])
import rich.console, rich.table
aws = Aws("us-east-1")
for service in ("sts", "ec2", "iam", "pricing", "service-quotas", "ssm", "efs", "s3"):
    aws._client(service)
with open("/proc/self/status") as about:  # getrusage would include the parent process
    most = next(int(line.split()[1]) for line in about if line.startswith("VmHWM"))
print(json.dumps({"mb": most / 1000, "modules": sorted(sys.modules)}))
"""


def test_all_commands_together_are_small(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", EVERYTHING], cwd=tmp_path, capture_output=True, text=True,
        env={"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["mb"] < LARGEST_MB
    assert not HEAVY & {name.partition(".")[0] for name in told["modules"]}
