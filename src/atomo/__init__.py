"""Data-parallel PyTorch training over MPI with compressed gradients.

>>> import atomo, torch
>>> data = atomo.encode(torch.ones(3), "fp16", seed=0)
>>> atomo.decode(data)
tensor([1., 1., 1.])

A memory stores what was not sent. `average` combines the workers' frames: a mean, or a majority
vote for sign codecs:

>>> memory = atomo.make_memory("residual")  # one for each worker
>>> frame = atomo.encode(torch.ones(3), "topk(ratio=0.3)", seed=0, memory=memory)
>>> workers = [torch.tensor([5.0, -1.0]), torch.tensor([0.1, 2.0]), torch.tensor([0.1, -9.0])]
>>> atomo.average([atomo.encode(gradient, "signsgd", seed=0) for gradient in workers])
tensor([ 1., -1.])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atomo import codecs, errors
    from atomo.api import Encoder, average, decode, encode
    from atomo.codecs import CODECS, Codec, Law, make_codec
    from atomo.core.distribution import __version__
    from atomo.errors import (
        AtomoError,
        CheckpointError,
        CodecError,
        ConfigError,
        DataError,
        DeadlineExpired,
        Diverged,
        FrameError,
        MissingPackage,
        PeerLost,
        ReplicasDiffer,
        TooFewWorkers,
        TransportError,
    )
    from atomo.hooks.accelerate import accelerate_hook
    from atomo.hooks.ddp import ddp_hook
    from atomo.hooks.fsdp import fsdp_hook
    from atomo.hooks.lightning import lightning_callback
    from atomo.hooks.local.accelerate import accelerate_local_steps
    from atomo.hooks.local.lightning import lightning_local_steps
    from atomo.hooks.local.trainer import trainer_local_steps
    from atomo.hooks.local_steps import local_steps
    from atomo.hooks.onebit.algorithms import onebit_adam, onebit_lamb, zero_one_adam
    from atomo.hooks.onebit.deepspeed import deepspeed_optimizer
    from atomo.hooks.optimizer import wrap_optimizer
    from atomo.hooks.options.hook_options import HookOptions, LocalStepsOptions
    from atomo.hooks.published import add_parser_arguments, wrap_compress_optimizer
    from atomo.hooks.states.ddp_buckets import bucket_cap_mb_list
    from atomo.hooks.trainer import trainer_hook
    from atomo.memory import MEMORIES, Memory, default_memory, make_memory
    from atomo.options.compression import Compression
    from atomo.options.outer import OuterSGD, OuterSign

__all__ = [
    "CODECS",
    "MEMORIES",
    "AtomoError",
    "CheckpointError",
    "Codec",
    "CodecError",
    "Compression",
    "ConfigError",
    "DataError",
    "DeadlineExpired",
    "Diverged",
    "Encoder",
    "FrameError",
    "HookOptions",
    "Law",
    "LocalStepsOptions",
    "Memory",
    "MissingPackage",
    "OuterSGD",
    "OuterSign",
    "PeerLost",
    "ReplicasDiffer",
    "TooFewWorkers",
    "TransportError",
    "__version__",
    "accelerate_hook",
    "accelerate_local_steps",
    "add_parser_arguments",
    "average",
    "bucket_cap_mb_list",
    "codecs",
    "ddp_hook",
    "decode",
    "deepspeed_optimizer",
    "default_memory",
    "encode",
    "errors",
    "fsdp_hook",
    "lightning_callback",
    "lightning_local_steps",
    "local_steps",
    "make_codec",
    "make_memory",
    "onebit_adam",
    "onebit_lamb",
    "trainer_hook",
    "trainer_local_steps",
    "wrap_compress_optimizer",
    "wrap_optimizer",
    "zero_one_adam",
]

# A name is imported when it is first used: a command then handles Ctrl-C before it imports PyTorch,
# which takes seconds.
HOMES = {
    "codecs": "atomo.codecs",
    "errors": "atomo.errors",
    **dict.fromkeys(("Encoder", "average", "decode", "encode"), "atomo.api"),
    **dict.fromkeys(("CODECS", "Codec", "Law", "make_codec"), "atomo.codecs"),
    **dict.fromkeys(("MEMORIES", "Memory", "default_memory", "make_memory"), "atomo.memory"),
    **dict.fromkeys(
        (
            "AtomoError",
            "CheckpointError",
            "CodecError",
            "ConfigError",
            "DataError",
            "DeadlineExpired",
            "Diverged",
            "FrameError",
            "MissingPackage",
            "PeerLost",
            "ReplicasDiffer",
            "TooFewWorkers",
            "TransportError",
        ),
        "atomo.errors",
    ),
    "Compression": "atomo.options.compression",
    **dict.fromkeys(("HookOptions", "LocalStepsOptions"), "atomo.hooks.options.hook_options"),
    **dict.fromkeys(("OuterSGD", "OuterSign"), "atomo.options.outer"),
    "__version__": "atomo.core.distribution",
    "accelerate_hook": "atomo.hooks.accelerate",
    "bucket_cap_mb_list": "atomo.hooks.states.ddp_buckets",
    "ddp_hook": "atomo.hooks.ddp",
    "fsdp_hook": "atomo.hooks.fsdp",
    "lightning_callback": "atomo.hooks.lightning",
    "accelerate_local_steps": "atomo.hooks.local.accelerate",
    "lightning_local_steps": "atomo.hooks.local.lightning",
    "trainer_local_steps": "atomo.hooks.local.trainer",
    "local_steps": "atomo.hooks.local_steps",
    "deepspeed_optimizer": "atomo.hooks.onebit.deepspeed",
    **dict.fromkeys(
        ("onebit_adam", "onebit_lamb", "zero_one_adam"), "atomo.hooks.onebit.algorithms"
    ),
    "trainer_hook": "atomo.hooks.trainer",
    "wrap_optimizer": "atomo.hooks.optimizer",
    "add_parser_arguments": "atomo.hooks.published",
    "wrap_compress_optimizer": "atomo.hooks.published",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Imports and returns a public name or a public package."""
        if name not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = import_module(HOMES[name])
        return home if HOMES[name] == f"{__name__}.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    """Returns only the public names."""
    return sorted(__all__)
