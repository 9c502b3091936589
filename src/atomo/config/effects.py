"""The table of `atomo train`: for each setting, the condition under which it has an effect."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from atomo.codecs import make_codec
from atomo.config.comm_rules import fitted_codec, has_master
from atomo.config.comm_types import PARAMETER_SERVER
from atomo.config.effect_tables import ALWAYS, Effect
from atomo.config.resolve_codec import AUTO_CODEC, starts_at_first_step
from atomo.config.settings import Settings
from atomo.core.names import resolve
from atomo.memory import NoMemory, kind_of
from atomo.options.rates import SCHEDULES
from atomo.options.schedule import parse_schedule

__all__ = ["TRAIN_EFFECTS"]


@cache  # the conditions of several options call it
def resolved(settings: Settings) -> Settings:
    return settings.resolved()


def tunes(setting: str) -> Callable[[Settings], bool]:
    """Returns a condition: --code is used in the run, and its codec reads this setting."""

    def reads(settings: Settings) -> bool:
        if settings.code.lower() == AUTO_CODEC or starts_at_first_step(
            parse_schedule(settings.code_schedule)
        ):
            return False
        codec: Any = fitted_codec(make_codec(settings.code), settings.comm_type)
        names = {field.name for field in fields(codec)}
        overruled = setting == "bits" and bool(getattr(codec, "levels", False))
        return setting in names and not overruled

    return reads


def scheduled(*names: str) -> Callable[[Settings], bool]:
    """Returns a condition: the learning rate has one of these schedules."""
    return lambda settings: resolve("schedule", settings.schedule, SCHEDULES) in names


def applies_momentum(settings: Settings) -> bool:
    """True if the optimizer applies momentum, or the memory does in its place."""
    run = resolved(settings)
    return run.optimizer == "sgd" or (run.memory != AUTO_CODEC and kind_of(run.memory).has_momentum)


def may_damp(settings: Settings) -> bool:
    """True if noise damping may shorten the steps of a run."""
    run = resolved(settings)
    return run.optimizer == "sgd" and (run.memory == AUTO_CODEC or kind_of(run.memory) is NoMemory)


CODEC: Final = "--code {0.code} reads none of it; leave it out, or give a codec that does"
FALLS: Final = "--schedule {} reads it, {{0.schedule}} does not; give that, or leave it out"


def of_codec(setting: str) -> Effect[Settings]:
    # Not refused, since published scripts pass these options to every codec.
    return Effect(tunes(setting), CODEC, asks=lambda value: value is not None)


def of_schedule(*names: str) -> Effect[Settings]:
    why = FALLS.format(" or ".join(names))
    return Effect(scheduled(*names), why, refused=True, asks=lambda value: value != "")


def of_rounds(default: object) -> Effect[Settings]:
    """Returns the effect of an option that only rounds of local steps read."""
    return Effect(
        lambda s: s.has_local_steps,
        "--local-steps {0.local_steps} averages the gradients of every step, without rounds; give "
        "--local-steps 30, or leave it out",
        refused=True,
        asks=lambda value: value != default,
    )


# Options that every run reads, or refuses if they contradict others (`checks`, `comm_rules`).
READ: Final = (
    "n", "hostfile", "slurm", "task", "network", "weights", "dataset", "data_dir", "image_size",
    "batch_size", "batches_per_step", "epochs", "max_steps", "optimizer", "lr", "nesterov",
    "weight_decay", "decay_norms", "clip_grad", "label_smoothing", "ema_decay", "precision",
    "lr_shrinkage", "schedule", "lr_warmup_epochs", "lr_scale_by_workers", "recipe", "code",
    "code_schedule", "code_for", "warmup_epochs", "memory", "comm_type", "hierarchical", "down",
    "num_aggregate", "grace", "step_timeout", "dense_below", "dense_steps", "fusion",
    "blosc_codec", "enable_gpu", "master_device", "cuda_aware_mpi", "threads", "train_dir",
    "eval_freq", "checkpoint_every", "keep_checkpoints", "resume", "dump_every", "evaluator",
    "seed", "log_format", "timeout", "min_workers", "spares", "max_restarts", "mpi_args",
    "local_steps", "report", "transform",
)  # fmt: skip

TRAIN_EFFECTS: Final[Mapping[str, Effect[Settings]]] = MappingProxyType(
    dict.fromkeys(READ, ALWAYS)
    | {
        "local_seconds": of_rounds(0.0),
        "outer": of_rounds("auto"),
        "outer_mean": of_rounds("workers"),
        "fragments": of_rounds(1),
        "overlap": of_rounds("0"),
        "mix": of_rounds("0"),
        "test_batch_size": Effect(
            lambda s: s.evaluator.lower() != "none",
            "--evaluator none starts no evaluator; give --eval-batch-size to `atomo evaluate`",
        ),
        "momentum": Effect(
            applies_momentum, "--optimizer {0.optimizer} has momentum of its own; leave it out"
        ),
        "noise_damping": Effect(
            may_damp,
            "steps are damped with --optimizer sgd and --memory none; leave it out",
        ),
        "lr_shrink_freq": Effect(
            lambda s: s.lr_shrinkage != 1, "--lr-shrinkage is 1; give it, or leave this out"
        ),
        "lr_warmup_from": Effect(
            lambda s: s.lr_warmup_epochs > 0,
            "there is no warm-up of the rate; give --lr-warmup-epochs, or leave it out",
            refused=True,
        ),
        "lr_step_epochs": of_schedule("step"),
        "lr_milestones": of_schedule("multistep"),
        "lr_gamma": of_schedule("step", "multistep"),
        "lr_end": of_schedule("cosine", "linear"),
        "lr_by_epoch": Effect(
            lambda s: resolve("schedule", s.schedule, SCHEDULES) != "constant",
            "--schedule constant never moves; leave it out, or give a --schedule",
        ),
        "error_budget": Effect(
            lambda s: s.code.lower() == AUTO_CODEC,
            "--code auto keeps within it, --code {0.code} does not; give --code auto, or leave it "
            "out",
            refused=True,
            asks=lambda value: value is not None,
        ),
        "compress_ratio": of_codec("ratio"),
        "auto_share": Effect(
            lambda s: s.measures,
            "nothing is measured without --code auto or --fusion auto; leave it out",
            asks=lambda value: value is not None,
        ),
        "svd_rank": of_codec("rank"),
        "quantization_level": of_codec("bits"),
        "bucket_size": of_codec("bucket_size"),
        "fusion_mb": Effect(
            lambda s: not s.fusion,
            "--fusion {0.fusion} says which gradients share a message; leave one of them out, or "
            "give --fusion bytes:MB",
            refused=True,
        ),
        "blosc_level": Effect(
            lambda s: s.blosc_codec != "none", "--blosc-codec none compresses nothing; leave it out"
        ),
        "blosc_shuffle": Effect(
            lambda s: s.blosc_codec != "none",
            "--blosc-codec none compresses nothing; leave it out",
            asks=lambda value: value != "none",
        ),
        "log_interval": Effect(
            lambda s: s.log_format.lower() != "atomo",
            "--log-format atomo has a line for every step, as published; leave it out",
        ),
        "max_strikes": Effect(
            lambda s: has_master(s.comm_type),
            f"a master drops workers, and only --comm-type {PARAMETER_SERVER} has one; leave it "
            "out",
        ),
    }
)
