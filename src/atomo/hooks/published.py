"""The interface of MergeComp and DRAGONN: two functions, and the options of both."""

from argparse import ArgumentParser, Namespace
from dataclasses import fields, replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from atomo.api.validate import as_codec
from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.hooks.optimizer import AveragedOptimizer, wrap_optimizer

__all__ = ["add_parser_arguments", "wrap_compress_optimizer"]

COMMUNICATIONS = ("auto", "allgather", "allreduce")


def add_parser_arguments(parser: ArgumentParser) -> ArgumentParser:
    """Adds the options that `wrap_compress_optimizer` reads, and returns the same parser."""
    parser.add_argument("--compress", action="store_true", help="compress gradients")
    parser.add_argument("--compressor", default="topk", help="a codec, such as 'svd(rank=3)'")
    parser.add_argument("--memory", default="auto", help="auto, none, residual, dgc or momentum")
    parser.add_argument("--comm", default="auto", help="not used: the codec decides")
    parser.add_argument("--compress-ratio", type=float, help="share of entries to send")
    parser.add_argument("--fusion-num", type=int, default=2, help="buckets of about equal size")
    return parser


def wrap_compress_optimizer(
    model: nn.Module, optimizer: Optimizer, args: Namespace
) -> AveragedOptimizer:
    """Wraps an optimizer by the options of a command line; without --compress, uncompressed.

    Raises:
        ConfigError: as from `wrap_optimizer`, or an option is out of range.
    """
    if args.comm not in COMMUNICATIONS:
        raise ConfigError(
            f"--comm {args.comm}: one of {', '.join(COMMUNICATIONS)}; `atomo train` is a parameter "
            "server"
        )
    if args.fusion_num < 1:
        raise ConfigError(f"--fusion-num must be 1 or more, got {args.fusion_num}")
    size = sum(4 * parameter.numel() for parameter in model.parameters()) / 1e6
    bucket_mb = max(size / args.fusion_num, 1e-3)
    if not args.compress:
        return wrap_optimizer(optimizer, model, "sgd", bucket_mb=bucket_mb)
    codec = with_ratio(as_codec(args.compressor), args.compress_ratio)
    return wrap_optimizer(optimizer, model, codec, memory=args.memory, bucket_mb=bucket_mb)


def with_ratio(codec: Codec[Any], ratio: float | None) -> Codec[Any]:
    """Returns the codec with this ratio, if it has a ratio."""
    names = {field.name for field in fields(codec)}  # type: ignore[arg-type]  # a dataclass
    if ratio is None or "ratio" not in names:
        return codec
    changed: Codec[Any] = replace(codec, ratio=ratio)  # type: ignore[type-var]
    return changed
