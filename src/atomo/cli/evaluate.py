"""`atomo evaluate`: follows a run's checkpoints."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch

from atomo.config.settings import wants_gpu
from atomo.core.arguments import flag, option, parse_arguments
from atomo.core.bounds import ANY, IMAGES, PIXELS, SECONDS, THREADS, Bound, check
from atomo.core.process.allocator import keep_freed_memory
from atomo.core.visible import visible
from atomo.errors import INTERRUPTED, ConfigError
from atomo.launch.display.lines import evaluation_line
from atomo.launch.display.published_lines import published_evaluation
from atomo.launch.jobs.streams import EVENT_MARK
from atomo.training.evaluation.evaluation import Evaluation
from atomo.training.evaluation.evaluator import EvaluatorSettings, Missed, evaluate
from atomo.training.folder.ownership import LEASE_S

__all__ = ["EvaluateOptions", "main"]

EVENTS: Final = ("text", "json", "atomo")
AUTO: Final = "auto"
BOUNDS: Final[Mapping[str, Bound]] = {
    "image_size": PIXELS,
    "eval_batch_size": IMAGES,
    "eval_freq": ANY,
    "poll_interval": SECONDS,
    "idle_timeout": ANY,
    "threads": THREADS,
}

DESCRIPTION = """\
Evaluates every checkpoint of a run once, in order, as they appear in its folder.

  atomo evaluate --model-dir runs/x
  atomo evaluate --model-dir /nfs/x --network LeNet --dataset MNIST --eval-freq 50 --follow yes"""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The options of `atomo evaluate`."""

    model_dir: str = option("", "folder of the run; need not exist yet (required)")
    network: str | None = option(None, "model; default: the model of the checkpoint")
    dataset: str | None = option(None, "data set; default: the data set of the checkpoint")
    data_dir: str = option("data", "folder of the data sets")
    image_size: int | None = option(None, "pixels a side; default: the size of the checkpoint")
    eval_batch_size: int = option(1000, "samples per forward pass")
    eval_freq: int = option(
        0, "evaluate multiples of this step and the last checkpoint; 0: every checkpoint"
    )
    keep_best: bool = option(False, "copy the best checkpoint to `best/`: yes or no")
    poll_interval: float = option(1.0, "seconds between two checks of the folder")
    follow: bool = option(False, "wait for more checkpoints after the run has finished: yes or no")
    idle_timeout: float = option(0.0, "end after this many seconds without a checkpoint; 0: never")
    enable_gpu: str = option("", "yes: CUDA; auto: CUDA if available; no or empty: CPU")
    threads: int = option(0, "compute threads; 0: PyTorch's choice")
    events: str = option("text", "output: text, json, or atomo (the lines of the original ATOMO)")

    def __post_init__(self) -> None:
        check(self, BOUNDS, flag)


def main(words: Sequence[str]) -> int:
    """Evaluates until the run is finished."""
    options = parse_arguments(EvaluateOptions, words, "evaluate", DESCRIPTION)
    if not options.model_dir:
        raise ConfigError("--model-dir is missing: the folder of the run to evaluate")
    if options.events not in EVENTS:
        raise ConfigError(f"--events {options.events!r}; known: {', '.join(EVENTS)}")
    if options.threads:
        torch.set_num_threads(options.threads)
    keep_freed_memory()  # each batch reuses the memory of the previous batch
    threading.excepthook = defer_thread_error
    wait = sleep_beside_reader(os.getppid()) if options.events == "json" else time.sleep
    try:
        evaluate(evaluator_settings(options), reporter(options.events), wait=wait)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def defer_thread_error(failure: threading.ExceptHookArgs) -> None:
    """Ignores OSErrors of TensorBoard's thread: the next call of its writer raises them again."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)


def sleep_beside_reader(parent: int) -> Callable[[float], None]:
    """Returns a sleep that raises KeyboardInterrupt once the parent process is gone."""

    def wait(seconds: float) -> None:
        if os.getppid() != parent:
            raise KeyboardInterrupt
        time.sleep(seconds)

    return wait


def evaluator_settings(options: EvaluateOptions) -> EvaluatorSettings:
    """Returns the evaluator's own settings."""
    return EvaluatorSettings(
        model_dir=Path(options.model_dir),
        network=options.network,
        dataset=options.dataset,
        data_dir=Path(options.data_dir),
        image_size=options.image_size,
        eval_batch_size=options.eval_batch_size,
        eval_freq=options.eval_freq,
        poll_interval_s=options.poll_interval,
        follow=options.follow,
        idle_timeout_s=options.idle_timeout,
        keep_best=options.keep_best,
        device=device_of(options.enable_gpu),
        # The evaluator of an earlier launcher that was killed ends after its current checkpoint.
        predecessor_s=LEASE_S if options.events == "json" else 0.0,
    )


def device_of(enable_gpu: str) -> str:
    """Returns the device on which networks are evaluated."""
    if enable_gpu.lower() == AUTO:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cuda" if wants_gpu(enable_gpu) else "cpu"


def reporter(events: str) -> Callable[[Evaluation | Missed], None]:
    """Returns a function that prints a result in the format of `--events`."""

    def report(result: Evaluation | Missed) -> None:
        if isinstance(result, Missed):
            line = f"step {result.step}: {result.why}; not evaluated"
        elif events == "atomo":
            line = published_evaluation(result)
        elif events == "json":
            line = json.dumps(asdict(result))
        else:
            line = evaluation_line(result)
        mark = EVENT_MARK if events == "json" and isinstance(result, Evaluation) else ""
        os.write(sys.stdout.fileno(), f"{mark}{visible(line)}\n".encode())

    return report
