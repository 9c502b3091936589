"""`atomo explain FOLDER`: the measured and the predicted times of a run's steps."""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, final

from rich.table import Table

from atomo.cli.explanation.inputs import profile_of, scenario_of
from atomo.cli.explanation.options import ExplainOptions
from atomo.codecs import make_codec
from atomo.config.comm_rules import has_master
from atomo.config.file import SETTINGS_FILE, read_settings
from atomo.config.settings import Settings
from atomo.core.visible import visible
from atomo.errors import CheckpointError, ConfigError
from atomo.launch.console import report_console
from atomo.options.hierarchy import BY_NAME
from atomo.planning import Prediction, Scenario, measure_costs, predict
from atomo.planning.rails import HIERARCHICAL
from atomo.training.evaluation.evaluator import refuse_foreign
from atomo.training.records.step_lines import step_lines
from atomo.workloads.models import is_own

__all__ = ["by_last_plan", "explain_run", "with_enclosing_run", "with_run_options"]

FIRST: Final = 3  # the step from which on times count; before it, memory is still being made
# The parts of a step, by the names of metrics.jsonl; the first is the whole step.
PARTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "step": ("step_s",),
        "passes": ("compute_s",),
        "encode": ("encode_s",),
        "send and wait": ("send_s", "wait_s"),
        "decode": ("decode_s", "follow_s"),
        "optimizer": ("update_s",),
    }
)


@final
@dataclass(frozen=True)
class StepPart:
    """A part of a step, in seconds."""

    name: str
    measured_s: float
    """The median of the run's steps. Parts run beside each other, so they may exceed the step."""
    predicted_s: float | None


def explain_run(folder: Path, options: ExplainOptions) -> int:
    """Reads a run, predicts its steps from what is measured on this machine, and prints both.

    Args:
        folder: of the run.
        options: its links, and the hosts' cores; what is trained, the run says.

    Raises:
        CheckpointError: it has no steps.
        ConfigError: its settings are none.
    """
    settings = settings_of(folder)
    steps = by_last_plan([step for step in read_steps(folder) if step["step"] >= FIRST])
    if not steps:
        raise CheckpointError(f"{folder} has no step from {FIRST} on to explain: let it run longer")
    like_it = with_run_options(settings, options)
    scenario = scenario_of(like_it, profile_of(like_it))
    prediction = predict_step(settings, scenario, options.repetitions)
    parts = compare_parts(steps, scenario, prediction)
    if options.json:
        document = {"folder": str(folder), "steps": len(steps), "parts": [*map(asdict, parts)]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return 0
    report_console().print(table(folder, settings, parts))
    sys.stdout.write(visible(sentence(parts, options)))
    return 0


def read_steps(folder: Path) -> list[Mapping[str, Any]]:
    """Reads the steps of a run. Raises CheckpointError where a line is none."""
    times = [name for names in PARTS.values() for name in names]
    return step_lines(folder, ["step_s"], [*times, "plan_since"])


def by_last_plan(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the steps with the codecs and messages that the settings of the run name now."""
    since = [step.get("plan_since", 1) for step in steps]
    return [step for step, plan_since in zip(steps, since, strict=True) if plan_since == since[-1]]


def settings_of(folder: Path) -> Settings:
    """Reads the settings of the run."""
    values = read_settings([folder / SETTINGS_FILE])
    values.pop("hostfile", None)  # it may be gone by now
    return Settings(**values).resolved()


def with_enclosing_run(options: ExplainOptions) -> ExplainOptions:
    """Returns the same options; where their file lies in the folder of a run, of its model and
    samples.
    """
    file = Path(options.weights or options.gradient)
    for folder in (file.parent, file.parent.parent):  # checkpoints lie there, gradients below
        if file.is_file() and not options.compute and (folder / SETTINGS_FILE).is_file():
            return with_run_samples(settings_of(folder), options)
    return options


def with_run_samples(settings: Settings, options: ExplainOptions) -> ExplainOptions:
    """Returns the same options, of the model and the samples of a run.

    Raises:
        ConfigError: the run alone would have us import a module.
    """
    refuse_foreign(settings.network, options.network if is_own(options.network) else None)
    return replace(
        options,
        network=settings.network,
        dataset=settings.dataset,
        data_dir=settings.data_dir,
        image_size=settings.image_size or 0,
        batch_size=settings.share_of_step,
        threads=settings.threads or options.threads,
    )


def with_run_options(settings: Settings, options: ExplainOptions) -> ExplainOptions:
    """Returns the same options, of a run."""
    return replace(
        with_run_samples(settings, options),
        workers=settings.workers,
        hierarchical=hierarchy_of(settings, options),
        probe="",
    )


def hierarchy_of(settings: Settings, options: ExplainOptions) -> str:
    """Returns the workers of a host.

    Raises:
        ConfigError: hosts went by their names, and how many there were is not known.
    """
    if settings.hierarchical != BY_NAME:
        return settings.hierarchical or "no"
    if options.per_host > 1:
        return options.hierarchical
    raise ConfigError(
        "the run had --hierarchical yes, by the names of its hosts; say how many of its "
        f"{settings.workers} workers shared one, e.g. --hierarchical 2"
    )


def predict_step(settings: Settings, scenario: Scenario, repetitions: int) -> Prediction:
    """Returns a step of the run."""
    reduction = "Allgather" if has_master(settings.comm_type) else settings.comm_type
    gradient, compression = scenario.profile.gradient, settings.compression
    codec = make_codec(settings.code)
    costs = measure_costs(codec, reduction, gradient, repetitions, compression)
    inside = HIERARCHICAL if scenario.per_host > 1 else ""
    return predict(scenario, costs, inside + settings.comm_type, settings.grouping)


def compare_parts(
    steps: Sequence[Mapping[str, Any]], scenario: Scenario, prediction: Prediction
) -> list[StepPart]:
    """Compares the measured and the predicted times of a step and its parts."""
    foreseen = {"step": prediction.step_s, "passes": scenario.compute_s}

    def measured(names: tuple[str, ...]) -> float:
        sums = (sum(float(step.get(name, 0.0)) for name in names) for step in steps)
        return statistics.median(sums)

    return [StepPart(name, measured(names), foreseen.get(name)) for name, names in PARTS.items()]


def table(folder: Path, settings: Settings, parts: Sequence[StepPart]) -> Table:
    """Returns one row a part."""
    how = f"--comm-type {settings.comm_type} --code '{settings.code}'"
    out = Table(title=f"{folder}: {settings.network}, {settings.workers} workers, {how}")
    for column in ("", "measured, ms", "of the step", "predicted, ms", "off by"):
        out.add_column(column, justify="right" if column else "left")
    whole_s = parts[0].measured_s
    for part in parts:
        cells = [part.name, f"{1e3 * part.measured_s:.1f}", share_text(part.measured_s, whole_s)]
        if part.predicted_s is not None:
            off = share_text(part.predicted_s - part.measured_s, part.measured_s, "+")
            cells += [f"{1e3 * part.predicted_s:.1f}", off]
        out.add_row(*cells)
    return out


def share_text(seconds: float, of_s: float, sign: str = "-") -> str:
    """Formats a share of a time; "+" shows its sign always. A time of 0 has no shares."""
    return f"{seconds / of_s:{sign}.0%}" if of_s > 0 else "-"


def sentence(parts: Sequence[StepPart], options: ExplainOptions) -> str:
    """Names the part that took most of the time."""
    largest = max(parts[1:], key=lambda part: part.measured_s)
    share = share_text(largest.measured_s, parts[0].measured_s)
    return (
        f"Most of a step is {largest.name}: {share}. Predicted for links of "
        f"{options.bandwidth} and {options.latency}, from what this machine takes now.\n"
    )
