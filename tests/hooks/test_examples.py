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
    ("launcher", "example"),
    [
        (TORCHRUN, "ddp.py"),
        (TORCHRUN, "with_accelerate.py"),
        (MPIRUN, "own_loop.py"),
        (MPIRUN, "local_steps.py"),
        (TORCHRUN, "fsdp_reduce_scatter.py"),
        (TORCHRUN, "local_ddp.py"),
        (TORCHRUN, "local_accelerate.py"),
        (TORCHRUN, "local_trainer.py"),
        ([sys.executable], "local_lightning.py"),
    ],
    ids=lambda part: part.removesuffix(".py") if isinstance(part, str) else Path(part[0]).name,
)
def test_two_ranks_learn_with_a_fraction_of_the_bytes(launcher, example, tmp_path):
    done = subprocess.run(
        [*launcher, EXAMPLES / example],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [(ratio, accuracy)] = re.findall(PRINTED, done.stdout)
    assert float(ratio) > 20
    assert float(accuracy) > 93


def test_compression_takes_three_lines():
    lines = (EXAMPLES / "ddp.py").read_text().splitlines()
    ours = [line for line in lines if re.search(r"  # [123]$", line)]
    assert len(ours) == 3
    plain = "\n".join(
        line for line in lines if line not in ours and "atomo.workloads.datasets" not in line
    )
    assert not re.search(r"atomo\.(?!workloads)|\bhook\b", plain.replace("state.stats", ""))
