"""The records of a run, read from its folder without a change to it.

A run may be old, unfinished, running, or a stranger's. A file that is missing or damaged leaves its
part out; `remarks` says which.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, final

from atomo.config.file import SETTINGS_FILE
from atomo.core.safe_read import read_whole
from atomo.errors import AtomoError, ConfigError
from atomo.report.columns import StepColumns, read_columns, read_records
from atomo.training.checkpoints.manifest import step_of_manifest
from atomo.training.evaluation.evaluation_log import EVALUATIONS
from atomo.training.folder.finished_marker import Finished, finished
from atomo.training.folder.run_folder import decoded
from atomo.training.job.plan import CODECS_FILE, MESSAGES_FILE, CodecPlan, MessagePlan
from atomo.workloads import LOSS, Metric, make_task

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["EVENTS_FILE", "RunRecords", "SavedCheckpoint", "read_run"]

T = TypeVar("T")
EVENTS_FILE: Final = "events.jsonl"
LAYERS_FILE: Final = "layers.json"
LAYER_ERRORS_FILE: Final = "layer-errors.json"
MOST_LAYERS: Final = 1000
MOST_SETTINGS: Final = 2**18  # bytes of settings.toml


@final
@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint in the folder."""

    step: int
    size: int
    """Bytes of its files."""


@final
@dataclass(frozen=True)
class RunRecords:
    """All that the folder of a run says."""

    folder: Path
    steps: StepColumns
    settings: Mapping[str, Any]
    evaluations: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    """Records of events.jsonl, each with its name in `event`."""
    checkpoints: Sequence[SavedCheckpoint]
    end: Finished | None
    codecs: CodecPlan | None
    messages: MessagePlan | None
    layers: Sequence[Mapping[str, Any]] = ()
    """Records of layers.json."""
    layer_errors: Sequence[Mapping[str, Any]] = ()
    """Records of layer-errors.json, each with the step of its measurement in `step`."""
    remarks: Sequence[str] = field(default=())
    """Sentences about files that are damaged or missing."""

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.name or str(self.folder)

    @property
    def metric(self) -> Metric:
        """The headline of the task; the loss where the task is unknown."""
        try:
            return make_task(str(self.settings.get("task", "images"))).metrics[0]
        except AtomoError:
            return LOSS

    def events_of(self, name: str) -> list[Mapping[str, Any]]:
        """Returns the events of a name, in their order."""
        return [event for event in self.events if event.get("event") == name]

    def setting(self, name: str, default: str = "") -> str:
        """Returns a setting as text."""
        return str(self.settings.get(name, default))


def read_run(folder: Path) -> RunRecords:
    """Reads the folder of a run.

    Raises:
        ConfigError: there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give the folder of a run, such as runs/NAME")
    remarks: list[str] = []
    steps = part(lambda: read_columns(folder / "metrics.jsonl"), remarks, StepColumns.none())
    if steps.skipped:
        remarks.append(f"metrics.jsonl: {steps.skipped:,} lines are no steps, and are left out.")
    return RunRecords(
        folder=folder,
        steps=steps,
        settings=part(lambda: read_toml(folder / SETTINGS_FILE), remarks, {}),
        evaluations=part(lambda: read_evaluations(folder, remarks), remarks, []),
        events=part(lambda: read_records(folder / EVENTS_FILE)[0], remarks, []),
        checkpoints=part(lambda: saved_checkpoints(folder), remarks, []),
        end=part(lambda: finished(folder, patience_s=0.0), remarks, None),
        codecs=part(lambda: plan_in(folder / CODECS_FILE, CodecPlan.read), remarks, None),
        messages=part(lambda: plan_in(folder / MESSAGES_FILE, MessagePlan.read), remarks, None),
        layers=part(lambda: read_layers(folder / LAYERS_FILE), remarks, []),
        layer_errors=part(lambda: read_layers(folder / LAYER_ERRORS_FILE), remarks, []),
        remarks=remarks,
    )


def part(read: Callable[[], T], remarks: list[str], missing: T) -> T:
    """Returns the result of `read`; if a file cannot be read, `missing`, and a remark."""
    try:
        return read()
    except (OSError, AtomoError, ValueError, KeyError, TypeError, RecursionError) as error:
        remarks.append(f"Left out: {error}")
        return missing


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the values of settings.toml, of this version or another."""
    try:
        return tomllib.loads(read_whole(path, MOST_SETTINGS).decode(errors="replace"))
    except FileNotFoundError:
        return {}


def read_evaluations(folder: Path, remarks: list[str]) -> list[Mapping[str, Any]]:
    """Returns the evaluations in the order of their steps, and counts lines that are none."""
    records, skipped = read_records(folder / EVALUATIONS)
    evaluations = [record for record in records if type(record.get("step")) is int]
    if skipped := skipped + len(records) - len(evaluations):
        remarks.append(f"{EVALUATIONS}: {skipped:,} lines are no evaluations, and are left out.")
    return sorted(evaluations, key=lambda record: int(record["step"]))


def saved_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """Returns the checkpoints that have a manifest, with the sizes of their files."""
    sizes = {entry.name: entry.lstat().st_size for entry in folder.iterdir()}
    steps = sorted(filter(None, map(step_of_manifest, sizes)))
    prefixes = {step: f"step-{step:08d}." for step in steps}
    return [
        SavedCheckpoint(step, sum(size for name, size in sizes.items() if name.startswith(prefix)))
        for step, prefix in prefixes.items()
    ]


def read_layers(path: Path) -> list[Mapping[str, Any]]:
    """Returns the rows of a file about layers; an empty list without a file."""
    try:
        record = decoded(read_whole(path))
    except FileNotFoundError:
        return []
    rows = record.get("rows") if isinstance(record, Mapping) else None
    if not isinstance(rows, list):
        raise ValueError(f"{path.name} is no record of layers")
    step = {"step": record.get("step")}
    whole = [{**step, **row} for row in rows if isinstance(row, Mapping)]
    return [*whole[:MOST_LAYERS]]


def plan_in(path: Path, read: Callable[[Any], T]) -> T | None:
    """Returns the current plan of a file; None without a file."""
    try:
        record = decoded(read_whole(path))
    except FileNotFoundError:
        return None
    if not isinstance(record, Mapping):
        raise ValueError(f"{path.name} is no record of a plan")
    return read({name: value for name, value in record.items() if name != "earlier"})
