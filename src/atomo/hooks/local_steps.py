"""Optimizers that take local steps, and average what these have changed at the end of a round."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import Unpack

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.collectives.torch_distributed import TorchCollective
from atomo.hooks.gradient_owners import OPTIMIZERS
from atomo.hooks.job import join_job
from atomo.hooks.local.building import check_shards, make_replica
from atomo.hooks.local.config import local_config
from atomo.hooks.local.optimizer import LocalStepsOptimizer
from atomo.hooks.local.silence import stop_averaging
from atomo.hooks.optimizer import AveragedOptimizer, stepped_by
from atomo.hooks.optimizers.joined import JoinedOptimizers
from atomo.hooks.options.checks import check_group
from atomo.hooks.options.hook_options import LOCAL_DEFAULTS, LocalStepsOptions, takes_options

__all__ = ["local_steps"]


@takes_options(LocalStepsOptions, **LOCAL_DEFAULTS)
def local_steps(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    code: str | Codec[Any] | None = None,
    *,
    process_group: ProcessGroup | None = None,
    collective: Collective | None = None,
    replicas: DeviceMesh | None = None,
    **options: Unpack[LocalStepsOptions],
) -> LocalStepsOptimizer:
    """Wraps an optimizer so that ranks train alone, and average their weights every few steps.

        optimizer = atomo.local_steps(model, torch.optim.AdamW(...), "topk(ratio=0.01)", every=30)

    Use this in each process of a job launched by `torchrun` or `mpirun`, or in a single process.
    The call broadcasts the weights of rank 0, the first anchor. After `every` steps the differences
    anchor - weights of all ranks are averaged, compressed, as `wrap_optimizer` averages gradients.
    The outer optimizer steps the anchor with the mean difference as gradient, and all replicas
    continue from the anchor. This is DiLoCo; with fragments, overlap and mix it is Streaming
    DiLoCo.

    The wrapped optimizer is never reset. Its schedules count local steps; clipping and weight decay
    apply to local steps alone. Steps of the optimizer are counted, not batches: a `GradScaler`
    skips some, so end the loop by `optimizer.steps`, which all ranks must bring to the same number.

    A DistributedDataParallel communicates nothing after the call: its gradients and its buffers
    stay local. With `replicas`, each replica is a model sharded by FSDP2, and each rank exchanges
    the rows of its shard with the ranks that hold the same shard.

    Args:
        model: the model, plain, in DistributedDataParallel, or sharded by FSDP2.
        optimizer: the optimizer of parameters of `model`, with all its parameter groups; or
            several, such as Muon and AdamW, which step together.
        code: the codec of differences, or its specification such as "topk(ratio=0.01)"; None with
            `recipe`.
        process_group: the ranks, as a process group; None: `collective`.
        collective: the ranks; None: those of a DistributedDataParallel, or all ranks of the job.
        replicas: for a model sharded by FSDP2, a mesh of one dimension with the ranks that hold the
            shard of this rank, one rank of each replica.
        options: see `LocalStepsOptions`.

    Returns:
        The optimizer for the training loop. Its `exchange` has the memories and `stats`.

    Raises:
        TypeError: the keyword of an option is unknown.
        ConfigError: an option is invalid, the memory does not suit the codec or applies momentum,
            the optimizer has parameters that are not the model's, something else averages a
            parameter already, or ranks passed different arguments.
    """
    inner = joined(optimizer)
    check_arguments(model, inner, code)
    config = local_config(code, options)
    check_group(process_group)
    plain: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    check_shards(plain, replicas, config.hook)
    ranks = ranks_of(model, process_group, collective, replicas, config.timeout_s)
    replica = make_replica(config, ranks, plain, inner)
    if isinstance(model, DistributedDataParallel):
        stop_averaging(model)
    wrapped = LocalStepsOptimizer(inner, replica)
    OPTIMIZERS.add(wrapped, stepped_by(inner, plain).values())
    return wrapped


def joined(optimizer: object) -> Any:
    """Returns one optimizer for several."""
    several = isinstance(optimizer, Sequence) and bool(optimizer)
    if several and all(isinstance(single, Optimizer) for single in optimizer):  # type: ignore[attr-defined]
        return JoinedOptimizers(optimizer)  # type: ignore[arg-type]
    return optimizer


def check_arguments(model: object, optimizer: object, code: object) -> None:
    """Raises ConfigError for a model, an optimizer or a code of another type."""
    call = "atomo.local_steps(model, optimizer, 'topk(ratio=0.01)')"
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model comes first, not a {type(model).__name__}: {call}")
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"a torch.optim.Optimizer is needed, not a {type(optimizer).__name__}: {call}"
        )
    if isinstance(optimizer, AveragedOptimizer | LocalStepsOptimizer):
        raise ConfigError("the optimizer is wrapped already, and would average twice")
    if not isinstance(code, str | Codec | None):
        raise ConfigError(f"a code is needed, not a {type(code).__name__}: {call}")


def ranks_of(
    model: nn.Module,
    group: ProcessGroup | None,
    collective: Collective | None,
    replicas: DeviceMesh | None,
    timeout_s: float,
) -> Collective:
    """Returns the ranks that average: those of a mesh, a group, a collective, DDP, or the job."""
    if replicas is not None:
        return TorchCollective(replicas.get_group(), timeout_s)
    if group is not None:
        return TorchCollective(group, timeout_s)
    if collective is None and isinstance(model, DistributedDataParallel):
        return TorchCollective(model.process_group, timeout_s)
    return join_job(timeout_s) if collective is None else collective
