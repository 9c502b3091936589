"""Ranges of the numeric settings of a run."""

from collections.abc import Mapping
from typing import Final

from atomo.core.bounds import ANY, COUNT, IMAGES, PIXELS, SECONDS, THREADS, Bound

__all__ = ["BOUNDS", "FLOAT"]

FLOAT: Final = 3.4e38  # beyond it, float32 has only infinity
FINITE: Final = "beyond it lies infinity, in float32"
BOUNDS: Final[Mapping[str, Bound]] = {
    "n": Bound(1, 4096, "a job has a process", "every worker sends to the one master"),
    "image_size": PIXELS,
    "batch_size": IMAGES,
    "batches_per_step": IMAGES,
    "test_batch_size": IMAGES,
    "epochs": COUNT,
    "max_steps": COUNT,
    "lr": Bound(0, FLOAT, why_most=FINITE, above=True),
    "momentum": Bound(0, 1, why_most="what it adds up would never fade", below=True),
    "weight_decay": Bound(0, FLOAT, why_most=FINITE),
    "clip_grad": Bound(0, FLOAT, why_most=FINITE),
    "ema_decay": Bound(0, 1, why_most="the average would never move", below=True),
    "label_smoothing": Bound(0, 1, why_most="nothing would be left of the labels", below=True),
    "lr_shrinkage": Bound(0, FLOAT, why_most=FINITE, above=True),
    "lr_shrink_freq": COUNT,
    "lr_warmup_epochs": ANY,
    "lr_warmup_from": Bound(0, 1, "a step of 0 moves nothing", "a warm-up rises", above=True),
    "lr_step_epochs": Bound(0, ANY.most, why_most=ANY.why_most, above=True),
    "lr_gamma": Bound(0, 1, why_most="schedules fall; --lr-shrinkage may grow", above=True),
    "lr_end": Bound(0, 1, why_most="schedules fall; --lr-shrinkage may grow"),
    "error_budget": Bound(0, 1e6, "no codec adds accuracy", "more is no bound"),
    "auto_share": Bound(0, 1e6, why_most="as long as measuring takes, in any run"),
    "warmup_epochs": Bound(0, 100, why_most="each epoch of a warm-up has a codec of its own"),
    "compress_ratio": Bound(0, 1, "a codec sends something", "it is a share", above=True),
    "svd_rank": ANY,
    "quantization_level": COUNT,
    "bucket_size": ANY,
    "dense_below": ANY,
    "dense_steps": ANY,
    "local_seconds": Bound(0, 1e7, why_most="that is four months"),
    "fragments": COUNT,
    "fusion_mb": Bound(0, 8589, why_most="a message has at most 2^31 - 1 entries", above=True),
    "threads": THREADS,
    "eval_freq": COUNT,
    "keep_checkpoints": ANY,
    "dump_every": ANY,
    "seed": Bound(0, 2**63 - 1, why_most="seeds have 63 bits"),
    "log_interval": COUNT,
    "timeout": SECONDS,
    "step_timeout": Bound(0, 1e7, why_most="that is four months"),
    "grace": Bound(0, 1e6, why_most="give a lower --num-aggregate"),
    "min_workers": ANY,
    "spares": Bound(0, 4096, why_most="each is a process that waits"),
    "max_strikes": COUNT,
    "max_restarts": ANY,
    "checkpoint_every": Bound(0, 1e7, why_most="that is four months"),
}
