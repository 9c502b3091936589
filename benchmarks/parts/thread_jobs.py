"""Jobs in this process, with one thread for each rank, and their results."""

import threading
from collections.abc import Callable
from pathlib import Path

import torch

from atomo.config.settings import Settings
from atomo.training.checkpoints.checkpoint import latest, load
from atomo.training.evaluation.scoring import build_subject, score
from atomo.training.job.events import Event
from atomo.training.job.job import make_job
from atomo.training.rank import make_end
from atomo.transports import LocalTransport, network
from atomo.workloads import make_task

__all__ = ["accuracy", "run_ranks", "train"]


def train(chosen: Settings, tell: Callable[[Event], None] = lambda event: None) -> None:
    """Runs a job to its end. Errors: those of `run_ranks`."""
    # One after the other, since threads share the generator of the initial weights.
    jobs = [make_job(chosen, chosen.n) for _ in range(chosen.n)]

    def body(transport: LocalTransport) -> None:
        job = jobs[transport.rank]
        make_end(job, transport, torch.device("cpu"), tell, lambda: False).run()

    run_ranks(chosen.n, body)


def run_ranks(size: int, body: Callable[[LocalTransport], None]) -> None:
    """Runs `body` in a thread for each rank; raises the error of the first failed rank."""
    errors: list[Exception] = []

    def run(transport: LocalTransport) -> None:
        try:
            body(transport)
        except Exception as error:
            errors.append(error)
            transport.abort(1)  # no other rank waits for this one

    threads = [threading.Thread(target=run, args=(transport,)) for transport in network(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def accuracy(chosen: Settings) -> float:
    """Reads the accuracy of the last checkpoint, on the test images."""
    folder = Path(chosen.train_dir)
    step = latest(folder)
    assert step is not None
    task, data_dir = make_task(chosen.task), Path(chosen.data_dir)
    subject = build_subject(task, chosen.network, chosen.dataset, None, data_dir, "cpu")
    return score(load(folder, step, parts=["model"]), subject, 1000).values["top1"]
