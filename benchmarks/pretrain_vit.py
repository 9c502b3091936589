"""Trains a small Vision Transformer on five classes of CIFAR-10, and writes its weights in the
published format.

python benchmarks/pretrain_vit.py --data-dir data vit.npz
PYTHONPATH=benchmarks atomo train --network pretrain_vit:network --weights vit.npz --dataset Cifar10

The model is trained on crops of 24 pixels of images of 32 pixels. Fine-tuning on whole images must
resize its position embeddings (3x3 to 4x4 patches) and replace its head (5 to 10 classes).
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy

from atomo.workloads.datasets import epoch_seed, load_dataset
from atomo.workloads.datasets.arrays import ArraySplit
from atomo.workloads.models.vit import VitSize, vit

SIZE: Final = VitSize(width=96, layers=4, heads=3, hidden=192, patch=8)
EDGE: Final = 4  # pixels cut off each side; the augmentation shifts images by up to as many
BATCH: Final = 128
# Published keys by the names of this model.
KEYS: Final = {
    "cls_token": "cls",
    "pos_embed": "Transformer/posembed_input/pos_embedding",
    "patch_embed.proj": "embedding",
    "norm": "Transformer/encoder_norm",
    "head": "head",
    "norm1": "LayerNorm_0",
    "norm2": "LayerNorm_2",
    "mlp.fc1": "MlpBlock_3/Dense_0",
    "mlp.fc2": "MlpBlock_3/Dense_1",
    "attn.proj": "MultiHeadDotProductAttention_1/out",
}


def main() -> None:
    """Trains in one process, and prints the loss of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument(
        "--classes", type=int, default=5, help="number of classes: the first of the data set"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    torch.manual_seed(chosen.seed)
    model = pretrained(chosen)
    arrays = as_published(model, SIZE.heads)
    numpy_arrays: dict[str, Any] = {key: tensor.numpy() for key, tensor in arrays.items()}
    np.savez(chosen.file, **numpy_arrays)


def network(num_classes: int, input_shape: tuple[int, int, int]) -> Module:
    """Returns the network, for `--network pretrain_vit:network`."""
    return vit(SIZE, input_shape, num_classes, dropout=0.0)


def pretrained(chosen: argparse.Namespace) -> Module:
    """Returns a network trained on the first classes."""
    data = load_dataset("Cifar10", chosen.data_dir)
    if not isinstance(data.train, ArraySplit):
        raise SystemExit("CIFAR-10 must have images of one size, in arrays")
    members = (data.train.labels < chosen.classes).nonzero().flatten()
    side = data.input_shape[1] - 2 * EDGE
    model = network(chosen.classes, (3, side, side))
    steps = chosen.epochs * (len(members) // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), chosen.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, chosen.lr, steps)
    for epoch in range(chosen.epochs):
        losses = []
        for indices in members[torch.randperm(len(members))].split(BATCH)[: len(members) // BATCH]:
            images, labels = data.train.batch(indices, seed=epoch_seed(chosen.seed, epoch))
            loss = cross_entropy(model(images[..., EDGE:-EDGE, EDGE:-EDGE]), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        print(f"epoch {epoch + 1}: mean loss {np.mean(losses):.3f}", flush=True)
    return model


def as_published(model: Module, heads: int) -> dict[str, Tensor]:
    """Returns the arrays of a Vision Transformer in the format of Google's files."""
    arrays: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        arrays |= dict(published(name, tensor, heads))
    return arrays


def published(name: str, tensor: Tensor, heads: int) -> Iterator[tuple[str, Tensor]]:
    """Yields the keys and arrays of a tensor; queries, keys and values become three arrays."""
    if name in KEYS:
        yield KEYS[name], tensor
        return
    layer, _, kind = name.rpartition(".")
    block = ""
    if layer.startswith("blocks."):
        _, number, layer = layer.split(".", 2)
        block = f"Transformer/encoderblock_{number}/"
    weight = "scale" if "norm" in layer else "kernel"
    key = weight if kind == "weight" else "bias"
    if layer != "attn.qkv":
        yield f"{block}{KEYS[layer]}/{key}", laid_out(layer, tensor, heads)
        return
    for part, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
        inputs_first = third.T if third.dim() == 2 else third
        shaped = inputs_first.reshape(*inputs_first.shape[:-1], heads, -1)
        yield f"{block}MultiHeadDotProductAttention_1/{part}/{key}", shaped


def laid_out(layer: str, tensor: Tensor, heads: int) -> Tensor:
    """Returns a tensor with inputs before outputs; splits the output projection of attention by
    heads.
    """
    if tensor.dim() == 4:
        return tensor.permute(2, 3, 1, 0)
    if tensor.dim() == 1:
        return tensor
    return tensor.T.reshape(heads, -1, len(tensor)) if layer == "attn.proj" else tensor.T


if __name__ == "__main__":
    main()
