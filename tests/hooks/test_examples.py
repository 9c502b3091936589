"""The examples on two ranks, as their first lines say that they are started."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent
TORCHRUN = [BIN / "torchrun", "--nproc-per-node", "2"]
MPIRUN = [BIN / "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
PRINTED = r"2 ranks: ([\d.]+)x fewer bytes than dense(?:; |\n)([\d.]+)% of the test images right"


@pytest.mark.long
@pytest.mark.parametrize(
    ("launcher", "example", "least"),
    [
        (TORCHRUN, "ddp.py", 20),
        (TORCHRUN, "with_accelerate.py", 20),
        (MPIRUN, "own_loop.py", 20),
        (MPIRUN, "local_steps.py", 20),
        (TORCHRUN, "fsdp_reduce_scatter.py", 20),
        (TORCHRUN, "onebit_adam.py", 4),  # a fifth of its steps is dense
        (TORCHRUN, "local_ddp.py", 20),
        (TORCHRUN, "local_accelerate.py", 20),
        (TORCHRUN, "local_trainer.py", 20),
        ([sys.executable], "local_lightning.py", 20),
    ],
    ids=lambda part: Path(part[0] if isinstance(part, list) else str(part)).stem,
)
def test_two_ranks_learn_with_a_fraction_of_the_bytes(launcher, example, least, tmp_path):
    done = subprocess.run(
        [*launcher, EXAMPLES / example],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [(ratio, accuracy)] = re.findall(PRINTED, done.stdout)
    assert float(ratio) > least
    assert float(accuracy) > 93


def test_compression_takes_three_lines():
    lines = (EXAMPLES / "ddp.py").read_text().splitlines()
    ours = [line for line in lines if re.search(r"  # [123]$", line)]
    assert len(ours) == 3
    plain = "\n".join(
        line for line in lines if line not in ours and "atomo.workloads.datasets" not in line
    )
    assert not re.search(r"atomo\.(?!workloads)|\bhook\b", plain.replace("state.stats", ""))
