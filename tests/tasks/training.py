"""A whole job of a task on small data, and what its evaluator says."""

from collections.abc import Mapping
from pathlib import Path

from support import run_threads

from atomo.launch.place import canonical
from atomo.tasks import chosen
from atomo.training.evaluator import Evaluation, EvaluatorSettings, evaluate


def trained(folder: Path, **given: object) -> Mapping[str, float]:
    """The values of the last checkpoint of 1 master and 2 workers."""
    run = folder / "run"
    short = {"n": 3, "max_steps": 60, "eval_freq": 1000, "batch_size": 16, "epochs": 1000}
    places = {"data_dir": str(folder), "train_dir": str(run)}
    run_threads(canonical(chosen(**(short | places | given))))
    results: list[Evaluation] = []
    evaluate(EvaluatorSettings(run, None, None, folder), results.append)
    return results[-1].values
