"""`atomo throughput`: images a second of whole jobs, with compression and without."""

import argparse
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, final

from rich.table import Table

from atomo.config import effects as setting_effects
from atomo.config.effect_tables import Effect, caution
from atomo.config.settings import Settings
from atomo.core.arguments import Parser, flag, number_converter, translate_spellings
from atomo.core.bounds import ANY, COUNT, check
from atomo.core.number_text import bytes_text
from atomo.errors import ConfigError
from atomo.launch.cli_settings import parse_cli_settings
from atomo.launch.console import report_console
from atomo.launch.resolve import resolve_settings
from atomo.launch.studies.quiet_jobs import QuietDisplay, run_trial
from atomo.training.job.events import StepDone

__all__ = ["MeasuredSteps", "Speed", "main", "speed"]

DESCRIPTION: Final = """\
Trains on noise and prints images a second: first dense, then with --code. Options are those of
`atomo train`, and

  --num-warmup-batches X    steps before anything counts (default 10)
  --num-batches-per-iter X  steps to a measurement (default 10)
  --num-iters X             measurements; their mean and spread are printed (default 10)

  atomo throughput --network ResNet50 --batch-size 32 --code dgc --n 3"""
DENSE: Final = "sgd"
STEPS: Final[Effect[Settings]] = Effect(
    lambda settings: False,
    "--num-warmup-batches and --num-iters times --num-batches-per-iter are the steps; give these",
    refused=True,
)
OWN: Final[Effect[Settings]] = Effect(
    lambda settings: False,
    "jobs have folders that are gone afterwards, no evaluator and no lines of steps; leave it out",
)
# Settings of a run that this command sets itself.
EFFECTS: Final[Mapping[str, Effect[Settings]]] = MappingProxyType(
    {
        **setting_effects.TRAIN_EFFECTS,
        **dict.fromkeys(("max_steps", "epochs"), STEPS),
        **dict.fromkeys(
            ("train_dir", "evaluator", "test_batch_size", "eval_freq", "checkpoint_every",
             "keep_checkpoints", "resume", "report", "log_interval"),
            OWN,
        ),
    }
)  # fmt: skip
SURE: Final = 1.96  # standard deviations on either side have 95 % of a normal distribution


@final
@dataclass(frozen=True)
class MeasuredSteps:
    """Numbers of steps to measure."""

    num_warmup_batches: int = 10
    num_batches_per_iter: int = 10
    num_iters: int = 10

    def __post_init__(self) -> None:
        bounds = {"num_warmup_batches": ANY, "num_batches_per_iter": COUNT, "num_iters": COUNT}
        check(self, bounds, flag)

    @property
    def steps(self) -> int:
        """Number of steps of the whole run."""
        return self.num_warmup_batches + self.num_batches_per_iter * self.num_iters


@final
@dataclass(frozen=True)
class Speed:
    """Speed of a job, all workers together."""

    code: str
    mean: float  # images a second
    spread: float  # 1.96 standard deviations of the measurements
    sent_bytes: float  # up, a step


def main(words: Sequence[str]) -> int:
    """Measures and prints."""
    plan, run_options = plan_steps(words)
    run = parse_cli_settings(["--dataset=Noise", *run_options], "throughput", DESCRIPTION)
    run.check(caution("throughput"), EFFECTS)
    base = run.settings
    resolve_settings(base)  # errors are raised now, not after the dense run
    speeds = []
    for settings in compared_runs(base):
        code, steps = run_job(settings, plan.steps)
        if code:
            return code
        speeds.append(speed(given_codecs(settings), steps, plan))
    report_console(120).print(table(speeds, base))
    return 0


def compared_runs(base: Settings) -> list[Settings]:
    """Returns the dense run, and the requested run if it is not dense."""
    dense = replace(base, code=DENSE, code_schedule="", code_for="", error_budget=None,
                    memory="auto", warmup_epochs=0, compress_ratio=None)  # fmt: skip
    return [dense] if dense.resolved() == base.resolved() else [dense, base]


def given_codecs(settings: Settings) -> str:
    """Returns all that a run sends with, as it was given."""
    served = settings.code_schedule or settings.code
    return f"{served}; {settings.code_for}" if settings.code_for else served


def plan_steps(words: Sequence[str]) -> tuple[MeasuredSteps, list[str]]:
    """Returns the numbers of steps to measure, and the options of the run."""
    own = Parser(prog="atomo throughput", add_help=False, allow_abbrev=False,
                 argument_default=argparse.SUPPRESS)  # fmt: skip
    names = [flag(field.name) for field in fields(MeasuredSteps)]
    for name in names:
        own.add_argument(name, type=number_converter(int, "a whole number"))
    parsed, run_options = own.parse_known_args(translate_spellings(words, names))
    return MeasuredSteps(**vars(parsed)), run_options


def run_job(settings: Settings, steps: int) -> tuple[int, list[StepDone]]:
    """Trains in a folder that is gone afterwards; the exit code, and the steps that were taken."""
    with tempfile.TemporaryDirectory(prefix="atomo-throughput-") as folder:
        recorder = QuietDisplay()
        short = replace(
            settings, train_dir=str(Path(folder) / "run"), evaluator="none", max_steps=steps,
            eval_freq=steps, keep_checkpoints=1, epochs=steps, resume="never",
            report=False,
        )  # fmt: skip
        return run_trial(short, recorder), recorder.steps


def speed(code: str, steps: Sequence[StepDone], plan: MeasuredSteps) -> Speed:
    """Formats mean and spread of the measurements.

    Raises:
        ConfigError: the run had fewer steps.
    """
    if len(steps) < plan.steps:
        raise ConfigError(f"the run had {len(steps)} steps; the plan needs {plan.steps}")
    counted, batches = steps[plan.num_warmup_batches :], plan.num_batches_per_iter
    rates = [rate(counted[batches * i : batches * (i + 1)]) for i in range(plan.num_iters)]
    mean = sum(rates) / len(rates)
    deviation = math.sqrt(sum((rate_ - mean) ** 2 for rate_ in rates) / len(rates))
    sent = sum(step.up_bytes for step in counted) / len(counted)
    return Speed(code, mean, SURE * deviation, sent)


def rate(steps: Sequence[StepDone]) -> float:
    """Images a second over some steps."""
    return sum(s.images_per_s * s.step_s for s in steps) / sum(s.step_s for s in steps)


def table(speeds: Sequence[Speed], settings: Settings) -> Table:
    """Prints one row for each run."""
    out = Table(title=f"{settings.network}, {settings.workers} workers x {settings.share_of_step}")
    for column in ("code", "images/s", "images/s a worker", "to dense", "sent/step"):
        out.add_column(column, justify="left" if column == "code" else "right")
    for row in speeds:
        workers = settings.workers
        out.add_row(
            row.code,
            f"{row.mean:.1f} +- {row.spread:.1f}",
            f"{row.mean / workers:.1f} +- {row.spread / workers:.1f}",
            f"{row.mean / speeds[0].mean:.2f}x",
            bytes_text(row.sent_bytes),
        )
    return out
