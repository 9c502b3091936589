"""Statistics of a gradient, and the error of a codec on each kind of its entries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from atomo.codecs import Codec
from atomo.codecs.sketches.lss_model import SIDES, sample, train_clusters
from atomo.exchange import Compressor
from atomo.exchange.compressor import add_frame
from atomo.fusion import plan
from atomo.memory import NoMemory
from atomo.options.grouping import ONE
from atomo.wire import Compression

__all__ = ["Cluster", "EncodingErrors", "Layer", "clusters", "layers", "losses", "reconstruct"]

BIG = 0.95  # quantile of the magnitudes beyond which an entry counts as big
BINS = 64


def column(text: str) -> Any:
    """Returns a figure, and what it is, for the legend under a table."""
    return field(metadata={"help": text})


@final
@dataclass(frozen=True)
class Layer:
    """One parameter's gradient in numbers."""

    name: str
    shape: tuple[int, ...]
    norm: float = column("Euclidean norm of the layer")
    largest: float = column("largest magnitude")
    tiny: float = column("share of the entries below a thousandth of the largest")
    top3: float = column(
        "share of the squared norm in the three largest singular values; near 1: svd sends little"
    )
    rank: float = column("stable rank, squared norm over squared largest singular value")
    entropy: float = column("bits an entry, of a histogram with 64 bins between the extremes")


def layers(gradient: Mapping[str, Tensor]) -> list[Layer]:
    """Returns every parameter's gradient, in order."""
    return [layer(name, tensor) for name, tensor in gradient.items()]


def layer(name: str, tensor: Tensor) -> Layer:
    magnitude = tensor.abs()
    largest = float(magnitude.max())
    energy = singular_values(tensor).square()
    total = float(energy.sum().clamp_min(1e-30))
    return Layer(
        name,
        tuple(tensor.shape),
        float(tensor.norm()),
        largest,
        float((magnitude < largest / 1000).float().mean()),
        float(energy[:3].sum()) / total,
        total / float(energy[0].clamp_min(1e-30)),
        histogram_entropy(tensor),
    )


def singular_values(tensor: Tensor) -> Float[Tensor, " r"]:
    """Computes the singular values, descending, of the matrix with a row per output channel; of a
    vector, its norm.
    """
    if tensor.ndim < 2:
        norm: Tensor = tensor.norm()
        return norm.reshape(1)
    matrix = tensor.flatten(1)
    small = (matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T).double()
    squares: Tensor = torch.linalg.eigvalsh(small @ small.T)
    return squares.clamp_min(0).sqrt().flip(0).float()


def histogram(tensor: Tensor) -> Float[Tensor, " bins"]:
    """Returns the share of the entries in each of 64 equal bins between the extremes."""
    low, high = (float(x) for x in tensor.aminmax())
    counts = torch.histc(tensor.flatten(), BINS, low, high if high > low else low + 1)
    return counts / tensor.numel()


def histogram_entropy(tensor: Tensor) -> float:
    """Returns the entropy of the histogram, bits an entry."""
    share = histogram(tensor)
    share = share[share > 0]
    return float(-(share * share.log2()).sum())


@final
@dataclass(frozen=True)
class Cluster:
    """One of the clusters that `lss` would make of the whole gradient."""

    centre: float = column("the mean that stands for a cluster of the whole gradient")
    share: float = column("share of all entries that lie in it")
    entropy: float = column("bits an entry of the cluster, of a histogram like that of a layer")


def clusters(gradient: Mapping[str, Tensor], seed: int = 1) -> list[Cluster]:
    """Returns the clusters that hold anything, by their centres."""
    generator = Generator().manual_seed(seed)
    flat = torch.cat([tensor.flatten() for tensor in gradient.values()])
    model = train_clusters(sample(flat, generator), SIDES, generator)
    rows = zip(*(t.tolist() for t in (model.centres, model.shares, model.entropies)), strict=True)
    return [Cluster(*row) for row in rows if row[1] > 0]


@final
@dataclass(frozen=True)
class EncodingErrors:
    """Relative errors of one encoding, ||sent - gradient|| / ||gradient||, by kind of entry."""

    spec: str = column("the codec, with the settings that are not its defaults")
    frame_bytes: int = column("the whole message, as it travels")
    everything: float = column(
        "norm of what one encoding lost over norm of the gradient; a memory makes up for it later"
    )
    positive: float = column("the same over the positive entries alone")
    negative: float = column("the same over the negative ones")
    big: float = column("the same over the twentieth of the entries with the largest magnitudes")
    small: float = column("the same over all others")


def reconstruct(
    codec: Codec[Any], gradient: Mapping[str, Tensor], seed: int = 1
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], int]:
    """Returns the flat gradient, what arrives of it through the wire, and the bytes
    that this took.
    """
    (bucket,) = plan([(name, t.shape) for name, t in gradient.items()], codec, ONE)
    wanted = torch.cat([gradient[slot.name].flatten() for slot in bucket.slots])
    compressor = Compressor(NoMemory(), Compression(), worker=1, seed=seed)
    frame = compressor.compress(bucket, wanted.clone(), 1)
    sent = torch.zeros_like(wanted)
    add_frame(bucket, frame, sent, 1.0)
    return wanted, sent, frame.size


def losses(codec: Codec[Any], gradient: Mapping[str, Tensor]) -> EncodingErrors:
    """Encodes a gradient once and measures the error by kind of entry."""
    wanted, sent, size = reconstruct(codec, gradient)
    magnitude = wanted.abs()
    rank = max(1, round(BIG * magnitude.numel()))
    big = magnitude > magnitude.kthvalue(rank).values
    return EncodingErrors(
        str(codec),
        size,
        share(wanted, sent, torch.ones_like(big)),
        share(wanted, sent, wanted > 0),
        share(wanted, sent, wanted < 0),
        share(wanted, sent, big),
        share(wanted, sent, ~big),
    )


def share(wanted: Tensor, sent: Tensor, which: Bool[Tensor, " n"]) -> float:
    """Returns the relative error over some of the entries."""
    error = (sent - wanted)[which].norm() / wanted[which].norm().clamp_min(1e-30)
    return float(error)
