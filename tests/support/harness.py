"""Helpers that tests of several packages share: jobs of threads, real jobs, and plain SGD to
compare with.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from atomo.config.settings import Settings
from atomo.core.randomness import derive
from atomo.training.job.events import Event
from atomo.training.job.job import make_job
from atomo.training.job.shard import Shard
from atomo.training.planner.planner import PlanGroup, plan_messages
from atomo.training.rank import make_end
from atomo.transports import LocalTransport, network
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

PATIENCE_S = 600.0  # only what hangs takes as long, on however loaded a machine


def together(
    bodies: Sequence[Callable[[], object]], failed: Callable[[], object] = lambda: None
) -> None:
    """Runs each body in a thread of its own and raises the first error of any of them.

    `failed` is called after the first error, so that no other body waits for the thread that
    failed.
    """
    errors: list[BaseException] = []

    def guarded(body: Callable[[], object]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)
            failed()

    threads = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"


def settings(train_dir: Path, **changes: object) -> Settings:
    """A short run on the embedded digits."""
    short = {"train_dir": str(train_dir), "max_steps": 20, "eval_freq": 1000, "timeout": PATIENCE_S}
    short["auto_share"] = 1e6  # what is to be measured is, however short the run
    return Settings(**(short | changes)).resolved()


def run_threads(
    chosen: Settings,
    tell: Callable[[Event], None] = lambda event: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> None:
    """The whole job in this process, a thread a rank."""

    def body(transport: LocalTransport) -> Callable[[], None]:
        job, cpu = make_job(chosen, transport.size), torch.device("cpu")
        group = PlanGroup(transport, cpu, chosen.timeout)

        def run() -> None:
            make_end(plan_messages(job, group), transport, cpu, tell, interrupted).run()

        return run

    transports = network(chosen.n)
    together([body(transport) for transport in transports], lambda: transports[0].abort(1))


def plain_sgd(
    chosen: Settings,
    rates: Sequence[float] = (),
    make: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
) -> dict[str, Tensor]:
    """Trains in one loop over the joined batches, written from PyTorch's tutorial; returns the
    weights.

    `rates` are the learning rates of the steps; empty: a rate that shrinks. `make` makes another
    optimizer than SGD.
    """
    data = load_dataset(chosen.dataset, Path(chosen.data_dir))
    torch.manual_seed(derive(chosen.seed, "weights"))
    model = build_model(chosen.network, data.input_shape, data.classes)
    optimizer = (
        make(model)
        if make
        else torch.optim.SGD(
            model.parameters(),
            lr=chosen.lr,
            momentum=chosen.momentum,
            nesterov=chosen.nesterov,
            weight_decay=chosen.weight_decay,
        )
    )
    workers = chosen.workers
    shards = [
        Shard(len(data.train), workers, w, chosen.batch_size, chosen.seed) for w in range(workers)
    ]
    for step in range(1, chosen.max_steps + 1):
        for group in optimizer.param_groups:
            shrunk = chosen.lr * chosen.lr_shrinkage ** ((step - 1) // chosen.lr_shrink_freq)
            group["lr"] = rates[step - 1] if rates else shrunk
        indices = torch.cat([shard.indices(step) for shard in shards])
        images, labels = data.train.batch(indices)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Over all entries of all tensors of `one`."""
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())
