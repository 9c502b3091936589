"""Ray Train: the example on two workers, and its continuation from the checkpoint of each."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_ray.py"
PRINTED = r"2 ranks from epoch (\d): ([\d.]+)x fewer bytes than dense; ([\d.]+)% of the test images"


@pytest.mark.long
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray Train: pip install 'ray[train]'")
def test_workers_of_ray_learn_with_a_fraction_of_the_bytes_and_continue(tmp_path):
    words = [sys.executable, EXAMPLE, "svd(rank=2, selection=top)", tmp_path / "run"]
    results = []
    for epochs in ("1", "3"):
        done = subprocess.run(
            [*words, epochs],
            cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        [(first, ratio, accuracy)] = re.findall(PRINTED, done.stdout)
        results.append((int(first), float(ratio), float(accuracy)))
    (first, ratio, early), (again, _, late) = results
    assert (first, again) == (0, 1)
    assert ratio > 20
    assert late > max(90, early)
