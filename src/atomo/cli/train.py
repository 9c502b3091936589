"""`atomo train`: trains a model in one job."""

from collections.abc import Sequence

from atomo.config.effect_tables import caution
from atomo.launch.cli_settings import parse_cli_settings
from atomo.launch.console import report_console
from atomo.launch.launcher import launch

__all__ = ["main"]

DESCRIPTION = """\
Trains a model with one master, n-1 workers and an evaluator.

  atomo train
  atomo train --network ResNet18 --dataset Cifar10 --n 5 --code 'svd(rank=3)' --train-dir runs/x
  atomo train --config configs/cifar/resnet20.toml configs/dgc/wm5.toml --n 9

The same command with the same --train-dir resumes the run. Ctrl-C writes a checkpoint and ends the
run; a second Ctrl-C ends the run immediately."""


def main(words: Sequence[str]) -> int:
    """Runs a training job; returns the exit code."""
    run = parse_cli_settings(words, "train", DESCRIPTION)
    run.check(caution("train"))
    return launch(run.settings, report_console(None), run.name)
