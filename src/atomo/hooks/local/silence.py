"""DistributedDataParallel without communication, for replicas that train alone."""

from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from atomo.hooks.options.checks import check_model

__all__ = ["stop_averaging"]


def stop_averaging(ddp: DistributedDataParallel) -> None:
    """Keeps the gradients and the buffers of a DistributedDataParallel local.

    Without synchronisation, as in `no_sync`, DDP does not even compare which parameters were used.
    The hook keeps gradients local where a program switches synchronisation on again.

    Raises:
        ConfigError: the model has a communication hook already.
    """
    if [hook for hook, _ in getattr(ddp, "_comm_hooks", ())] != [keep_local]:
        check_model(ddp)
        ddp.register_comm_hook(None, keep_local)
    ddp.require_backward_grad_sync = False
    ddp.require_forward_param_sync = False
    ddp.broadcast_buffers = False


def keep_local(state: object, bucket: GradBucket) -> Future[Tensor]:
    """Returns the gradients of this rank, as a communication hook."""
    future: Future[Tensor] = Future()
    future.set_result(bucket.buffer())
    return future
