"""Jobs in this process, with one thread for each rank, and their results."""

import threading
from collections.abc import Callable
from pathlib import Path

import torch

from atomo.config.settings import Settings
from atomo.training.checkpoints.checkpoint import latest, load
from atomo.training.evaluation.scoring import build_subject, score
from atomo.training.job.events import Event
from atomo.training.job.job import Job, make_job
from atomo.training.rank import make_end
from atomo.transports import LocalTransport, network
from atomo.workloads import make_task

__all__ = ["accuracy", "train"]


def train(chosen: Settings, tell: Callable[[Event], None] = lambda event: None) -> None:
    """Runs a job to its end; raises the error of the first failed rank."""
    errors: list[Exception] = []

    def body(transport: LocalTransport, job: Job) -> None:
        try:
            make_end(job, transport, torch.device("cpu"), tell, lambda: False).run()
        except Exception as error:
            errors.append(error)
            transport.abort(1)

    # One after the other, since threads share the generator of the initial weights.
    ranks = [(transport, make_job(chosen, chosen.n)) for transport in network(chosen.n)]
    threads = [threading.Thread(target=body, args=rank) for rank in ranks]
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
