"""The compressed reduce-scatter that FSDP2 calls in place of its own."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from atomo.errors import ConfigError
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.sharding.backward_steps import BackwardSteps
from atomo.hooks.sharding.fsdp_pieces import cut_pieces
from atomo.hooks.sharding.fsdp_shards import shards_of

__all__ = ["CustomReduceScatter"]


@final
class CustomReduceScatter:
    """The reduce-scatter of one module. It has the interface of FSDP2's `ReduceScatter`."""

    def __init__(
        self,
        steps: BackwardSteps,
        module: FSDPModule,
        number: int,
        parameters: Mapping[str, DTensor],
    ) -> None:
        """Makes the reduce-scatter of a module.

        Args:
            steps: averages the gradients of all modules.
            module: the module.
            number: its number, the same on all ranks.
            parameters: the parameters of the model by name.
        """
        self._steps, self._module, self._number = steps, module, number
        self._parameters = parameters
        self._names: dict[Tensor, str] = {p: name for name, p in parameters.items()}

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns an uninitialized tensor."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,
    ) -> None:
        """Replaces the output by the mean, or the sum, of all ranks' gradients for this rank.

        Args:
            output_tensor: the result.
            input_tensor: the gradients, a row for each rank; scratch space afterwards.
            group: the ranks.
            op: AVG or SUM.
            async_op: unused: the result is complete when the call returns.

        Raises:
            ConfigError: the operation is another, or some parameters have no gradient.
        """
        del async_op
        ranks, factor = group.size(), factor_of(op, group.size())
        shards = shards_of(self._module, self._names)
        pieces = cut_pieces(input_tensor, shards, self._parameters, ranks)
        if pieces:
            self._steps.average(Chunk(self._number, pieces, input_tensor))
        own = input_tensor.view(ranks, -1)[group.rank()]
        torch.mul(own, factor, out=output_tensor)


def factor_of(op: object, ranks: int) -> int:
    """Returns the result of an operation, divided by the mean.

    Raises:
        ConfigError: the operation is no mean and no sum.
    """
    if op == dist.ReduceOp.AVG:
        return 1
    if op == dist.ReduceOp.SUM:
        return ranks
    raise ConfigError(
        f"reduce_scatter=True averages gradients, and FSDP2 asks for {op}: leave out "
        "set_gradient_divide_factor"
    )
