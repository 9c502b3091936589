"""A network with layers that do not divide evenly among ranks."""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

__all__ = ["TEACHER", "OddNetwork", "sharded_network"]

TEACHER = torch.randn(32, 5, generator=torch.Generator().manual_seed(5))


class OddNetwork(nn.Module):
    """A layer of five rows, and a parameter of one row, which all ranks but one have none of."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.hidden = nn.ModuleList([nn.Linear(32, width), nn.Linear(width, 64)])
        self.out = nn.Linear(64, 5)
        self.scale = nn.Parameter(torch.ones(1))
        self.spare = nn.Linear(5, 5)

    def forward(self, images: Tensor, spare: bool = True) -> Tensor:
        for layer in self.hidden:
            images = layer(images).tanh()
        logits = self.scale * self.out(images)
        return logits + self.spare(logits) if spare else logits


def sharded_network(mesh: DeviceMesh, width: int = 64) -> OddNetwork:
    """Returns a network whose hidden layers are sharded one by one, and the other layers together.

    Args:
        mesh: the ranks that share the weights.
        width: the rows of the first layer.
    """
    model = OddNetwork(width)
    for layer in model.hidden:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
