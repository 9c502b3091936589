"""A whole job of a task on small data, and the output of its evaluator."""

from collections.abc import Mapping
from pathlib import Path

from support.harness import run_threads

from atomo.launch.resolve import canonical_settings
from atomo.training.evaluation.evaluator import Evaluation, EvaluatorSettings, evaluate
from atomo.workloads import choose_workload


def trained(folder: Path, *, trusted: bool = True, **inputs: object) -> Mapping[str, float]:
    """Returns the values of the last checkpoint of 1 master and 2 workers.

    Args:
        folder: where the data are, and where the run goes.
        trusted: whether the evaluator is told the network.
        given: settings.
    """
    run = folder / "run"
    short = {"n": 3, "max_steps": 60, "eval_freq": 1000, "batch_size": 16, "epochs": 1000}
    places = {"data_dir": str(folder), "train_dir": str(run)}
    settings = canonical_settings(choose_workload(**(short | places | inputs)))
    run_threads(settings)
    results: list[Evaluation] = []
    network = settings.network if trusted else None
    evaluate(EvaluatorSettings(run, network, None, folder), results.append)
    return results[-1].values
