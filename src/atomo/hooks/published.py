"""The interface of MergeComp and DRAGONN: two functions, and the options of both."""

import os
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Final

from torch import nn
from torch.optim import Optimizer

from atomo.api.validate import as_codec
from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.hooks.optimizer import AveragedOptimizer, wrap_optimizer

__all__ = ["add_parser_arguments", "wrap_compress_optimizer"]

COMMUNICATIONS: Final = ("auto", "allgather", "allreduce")
LAYER: Final = 1e-6  # MB of a bucket, which no tensor fits into, so that each has one of its own
NO_EFFECT: Final = "no effect"
SWITCH: Final[Mapping[str, Any]] = MappingProxyType({"action": "store_true"})
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "--compress": {**SWITCH, "help": "compress gradients"},
        "--compressor": {"default": "topk", "help": "a codec, such as 'svd(rank=3)'"},
        "--memory": {"default": "auto", "help": "auto, none, residual, dgc or momentum"},
        "--comm": {"default": "auto", "help": "allgather or allreduce; the codec decides"},
        "--compress-ratio": {"type": float, "help": "share of entries to send"},
        "--fusion-num": {
            "type": int,
            "default": 2,
            "help": "buckets of about equal size; 0: one for each layer",
        },
        "--fp16-allreduce": {**SWITCH, "help": "without --compress: send float16"},
        "--threshold": {"type": int, "help": "send tensors of up to this many entries dense"},
        "--compress-iter": {"type": int, "default": 0, "help": "first steps, which send dense"},
        "--pcie": {**SWITCH, "help": "sets NCCL_P2P_DISABLE=1, for process groups made later"},
        "--use-adasum": {**SWITCH, "help": "an error: gradients are averaged"},
        "--gradient-predivide-factor": {"type": float, "default": 1.0, "help": NO_EFFECT},
        "--batching": {**SWITCH, "help": f"{NO_EFFECT}: payloads are decoded into one sum"},
        "--benchmark": {**SWITCH, "help": f"{NO_EFFECT}: `atomo bench` times codecs"},
        "--adam": {**SWITCH, "help": f"{NO_EFFECT}: for the script, which creates the optimizer"},
        "--speed-test": {**SWITCH, "help": f"{NO_EFFECT}: for the script"},
        "--scheduler": {
            **SWITCH,
            "help": f"{NO_EFFECT}: `atomo train --fusion mergecomp` searches for buckets",
        },
        "--scheduler-baseline": {**SWITCH, "help": NO_EFFECT},
        "--scheduler-epoch": {"type": int, "default": 20, "help": NO_EFFECT},
        "--scheduler-step": {"type": int, "default": 2, "help": NO_EFFECT},
        "--scheduler-warmup": {"type": int, "default": 5, "help": NO_EFFECT},
    }
)
"""The options of both systems, and the keywords of `add_argument` for each."""


def add_parser_arguments(parser: ArgumentParser) -> ArgumentParser:
    """Adds the options of MergeComp and DRAGONN, and returns the same parser.

    An option that the parser has already stays that of the script, so call it after the others.
    """
    for name, keywords in OPTIONS.items():
        try:
            parser.add_argument(name, **keywords)
        except ArgumentError:  # the script has added it
            continue
    return parser


def wrap_compress_optimizer(
    model: nn.Module, optimizer: Optimizer, args: Namespace
) -> AveragedOptimizer:
    """Wraps an optimizer by the options of a command line; without --compress, uncompressed.

    Raises:
        ConfigError: as from `wrap_optimizer`, or an option is out of range.
    """
    check_options(args)
    if getattr(args, "pcie", False):
        os.environ["NCCL_P2P_DISABLE"] = "1"
    bucket_mb = bucket_size(model, args.fusion_num)
    if not args.compress:
        plain = "fp16" if getattr(args, "fp16_allreduce", False) else "sgd"
        return wrap_optimizer(optimizer, model, plain, bucket_mb=bucket_mb)
    threshold = getattr(args, "threshold", None)
    return wrap_optimizer(
        optimizer,
        model,
        with_ratio(as_codec(args.compressor), args.compress_ratio),
        memory=args.memory,
        bucket_mb=bucket_mb,
        dense_below=0 if threshold is None else threshold + 1,
        dense_steps=getattr(args, "compress_iter", 0),
    )


def check_options(args: Namespace) -> None:
    """Raises ConfigError for options that are out of range."""
    if args.comm not in COMMUNICATIONS:
        raise ConfigError(
            f"--comm {args.comm}: one of {', '.join(COMMUNICATIONS)}; `atomo train` has a "
            "parameter server"
        )
    if args.fusion_num < 0:
        raise ConfigError(f"--fusion-num must be 0 or more, got {args.fusion_num}")
    if getattr(args, "use_adasum", False):
        raise ConfigError("--use-adasum: gradients are averaged; leave it out")


def bucket_size(model: nn.Module, fusion_num: int) -> float:
    """Returns the MB of a bucket for a number of buckets; 0 buckets: one for each layer."""
    size = sum(4 * parameter.numel() for parameter in model.parameters()) / 1e6
    return max(size / fusion_num, 1e-3) if fusion_num else LAYER


def with_ratio(codec: Codec[Any], ratio: float | None) -> Codec[Any]:
    """Returns the codec with this ratio, if it has a ratio."""
    names = {field.name for field in fields(codec)}  # type: ignore[arg-type]  # a dataclass
    if ratio is None or "ratio" not in names:
        return codec
    changed: Codec[Any] = replace(codec, ratio=ratio)  # type: ignore[type-var]
    return changed
