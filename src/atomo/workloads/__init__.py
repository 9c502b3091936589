"""The tasks by name. To add a task: write its file, then list it in TASKS."""

from collections.abc import Mapping
from dataclasses import Field, fields, replace
from typing import Any, Final, get_type_hints

from atomo.codecs.spec import read_call
from atomo.config.settings import Settings
from atomo.core.names import find_spelling, nearest, resolve
from atomo.core.tables import Table
from atomo.errors import ConfigError
from atomo.workloads.base import LOSS, Batch, Metric, Objective, Samples, Scorer, Task, Workload

__all__ = [
    "LOSS",
    "TASKS",
    "Batch",
    "Metric",
    "Objective",
    "Samples",
    "Scorer",
    "Task",
    "Workload",
    "choose_workload",
    "dataset_named",
    "make_task",
    "restore_task",
    "spec_of",
    "task_of",
]

TASKS: Final[Table[type[Task]]] = Table(
    __name__,
    {
        "images": "images:Images",
        "text": "text.task:Text",
        "encoder": "encoder.task:SentenceEncoder",
        "language": "language.task:Language",
        "labels": "labels.task:Labels",
        "audio": "audio.task:Audio",
        "transcription": "audio.transcription:Transcription",
        "detection": "detection.task:Detection",
    },
)


def make_task(spec: str) -> Task:
    """Returns the task that a specification names, with its settings: `images`,
    `labels(hidden=4096)`.

    Raises:
        ConfigError: the specification cannot be read, names no task, or has settings that the task
            does not accept.
    """
    name, settings = read_call(spec)
    kind = TASKS[resolve("task", name, TASKS)]
    hints = get_type_hints(kind)
    types = {field.name: hints[field.name] for field in settings_of(kind)}
    for key, value in settings.items():
        if key not in types:
            raise ConfigError(f"{kind.id}: unknown setting {key!r}; {nearest(key, types)}")
        settings[key] = float(value) if types[key] is float and type(value) is int else value
        if type(settings[key]) is not types[key]:
            expected = types[key].__name__
            raise ConfigError(f"{kind.id}: {key} must be of type {expected}, got {value!r}")
    return kind(**settings)


def spec_of(task: Task) -> str:
    """Returns the specification of a task, without the settings that are its defaults.

    >>> spec_of(make_task("Images()"))
    'images'
    """
    values = ((field.name, getattr(task, field.name), field.default) for field in settings_of(task))
    arguments = ", ".join(
        f"{name}={value!r}" for name, value, default in values if value != default
    )
    return f"{task.id}({arguments})" if arguments else task.id


def settings_of(task: Task | type[Task]) -> list[Field[Any]]:
    """Returns the fields that people set."""
    return [setting for setting in fields(task) if not setting.metadata.get("stored")]


def restore_task(task: Task, config: Mapping[str, object]) -> Task:
    """Returns the same task with the fields that a checkpoint of this configuration stores
    beside the settings.

    Raises:
        ConfigError: the task cannot take it.
    """
    names = {setting.name for setting in fields(task)} - {
        setting.name for setting in settings_of(task)
    }
    return replace(task, **{name: str(config[name]) for name in names & set(config)})


def task_of(dataset: str) -> Task:
    """Returns the first task, with its defaults, that has a data set of this name; else the first
    of all.

    >>> task_of("cifar-10").id
    'images'
    """
    kinds = TASKS.values() if dataset else ()  # imports no task without need
    matching = (kind for kind in kinds if find_spelling(dataset, kind.datasets()))
    return next(matching, next(iter(TASKS.values())))()


def dataset_named(task: Task, name: str) -> str:
    """Returns the spelling of a data set's name that the settings keep.

    Raises:
        ConfigError: the task has no such data set; the message names a task that has it, or
            offers the nearest name.
    """
    if not find_spelling(name, task.datasets()):
        owner = task_of(name)
        if find_spelling(name, owner.datasets()):
            raise ConfigError(f"data set {name!r} is one of --task {owner.id}, not of {task.id}")
    return task.dataset_named(name)


def choose_workload(**settings: Any) -> Settings:
    """Returns the settings of a run, with the task of the data set that is given, and with the
    network and the data set that its task has where none is.

    Raises:
        ConfigError: a name is unknown, or a setting is out of range.
    """
    task = (
        make_task(settings["task"]) if "task" in settings else task_of(settings.get("dataset", ""))
    )
    own = {"task": spec_of(task), "network": task.network, "dataset": task.dataset}
    return Settings.from_recipe(**(own | settings))
