"""One epoch of a run of headlines.py: two ranks train from the last checkpoint to the next."""

from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import Module

from atomo.config.settings import Settings
from atomo.core.arguments import parse_arguments
from atomo.core.process.allocator import keep_freed_memory
from atomo.training.checkpoints.checkpoint import latest, load
from atomo.training.evaluation.scoring import build_subject, score
from atomo.training.job.events import Event, StepDone
from atomo.training.job.job import make_job
from atomo.training.rank import make_end
from atomo.training.records.json_lines import lines
from atomo.transports import LocalTransport
from atomo.workloads import make_task
from atomo.workloads.models import build_model
from parts.thread_jobs import run_ranks

__all__ = ["epoch_record", "network", "settings_of", "train_epoch"]


@final
class ChannelsLast(Module):
    """ResNet-20 on images in the memory format of the fastest convolutions."""

    def __init__(self, classes: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.model = build_model("ResNet20", shape, classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.model(images.contiguous(memory_format=torch.channels_last))
        return scores


def network(num_classes: int, input_shape: tuple[int, int, int]) -> Module:
    """Returns the network, for `--network parts.headlines.train:network`."""
    return ChannelsLast(num_classes, input_shape)


def settings_of(words: str, data_dir: Path, folder: Path) -> Settings:
    """Resolves the options of a run."""
    chosen = parse_arguments(Settings, words.split(" "), "train", "", Settings.from_recipe)
    places = replace(chosen.resolved(), train_dir=str(folder), data_dir=str(data_dir))
    return replace(places, eval_freq=10**9, keep_checkpoints=2)


@final
class EpochEnd:
    """The end of the steps of one call: the end of an epoch, as after Ctrl-C."""

    def __init__(self, first_step: int, last_step: int) -> None:
        self._next, self._last_step = first_step, last_step

    def observe(self, event: Event) -> None:
        """Counts a step."""
        if isinstance(event, StepDone):
            self._next = event.step + 1

    def interrupted(self) -> bool:
        """True if the next step is the last."""
        return self._next >= self._last_step


def train_epoch(chosen: Settings, epoch: int) -> None:
    """Trains from the last checkpoint to the end of an epoch, which counts from 1.

    A folder that is lost costs the epochs until then again, with the same bits.
    """
    keep_freed_memory()
    jobs = [make_job(chosen, chosen.n) for _ in range(chosen.n)]
    last_step = epoch * jobs[0].steps_per_epoch
    done = latest(Path(chosen.train_dir)) or 0
    if done < last_step:
        end = EpochEnd(done + 1, last_step)

        def body(transport: LocalTransport) -> None:
            torch.set_num_threads(1)
            job, device = jobs[transport.rank], torch.device("cpu")
            make_end(job, transport, device, end.observe, end.interrupted).run()

        run_ranks(chosen.n, body)


def epoch_record(chosen: Settings, epoch: int) -> dict[str, Any]:
    """Returns the figures of the last epoch of a run: the test accuracy, and means of its steps."""
    folder = Path(chosen.train_dir)
    step = latest(folder)
    assert step is not None
    task = make_task(chosen.task)
    subject = build_subject(
        task, chosen.network, chosen.dataset, None, Path(chosen.data_dir), "cpu"
    )
    values = score(load(folder, step, parts=["model"]), subject, 1000).values
    metrics = lines(folder / "metrics.jsonl")
    steps = [line for line in metrics if epoch - 1 < line["epoch"] <= epoch]
    return {
        "epoch": epoch,
        "step": step,
        "top1": round(values["top1"], 4),
        "test_loss": round(values["loss"], 4),
        "train_loss": round(mean(steps, "loss"), 4),
        "sent_bytes": round(mean(steps, "up_bytes")),
        "damping": round(mean(steps, "damping"), 4),
        "step_s": round(mean(steps, "step_s"), 4),
    }


def mean(steps: list[Any], name: str) -> float:
    """Returns the mean of a figure of the steps."""
    return float(sum(step[name] for step in steps) / len(steps))
