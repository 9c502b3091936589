"""Accuracy with compressed differences of weights: every codec of gradients with every `--down`.

LeNet is trained on the embedded digits, with three workers, 10 epochs, and defaults otherwise.
There is no checkpoint before the end, since workers get all weights at a checkpoint. A cell is the
test accuracy after the last step, with the format of `converge.py`.

    python benchmarks/downlinks.py > table.md
"""

import shlex
import sys
from typing import Final

from converge import run

DOWN: Final = (
    "weights",
    "delta(bf16)",
    "delta(efsignsgd)",
    "delta(topk(ratio=0.05))",
    "delta(topk(ratio=0.01))",
    "delta(svd(rank=3, selection=top))",
)
UP: Final = {
    "`sgd`": "--code sgd",
    "`sgd`, momentum 0": "--code sgd --momentum 0",
    "`sgd`, Adam": "--code sgd --optimizer adam --lr 0.001",
    "`svd`": "--code svd",
    "`topk` of 1 %": "--code 'topk(ratio=0.01)'",
    "`qsgd`": "--code qsgd",
    "`topk` of 1 %, 2 of 3 workers": "--code 'topk(ratio=0.01)' --num-aggregate 2",
}


def main() -> None:
    """Runs the jobs, and prints the table."""
    heads = [f"`{down}`" for down in DOWN]
    lines = ["| gradients | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(DOWN)]
    for name, options in UP.items():
        cells = [run(f"--n 4 {options} --down {shlex.quote(down)}").cell() for down in DOWN]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        sys.stderr.write(lines[-1] + "\n")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
