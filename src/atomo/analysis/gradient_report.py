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
    """Returns a field with its description for the legend under a table."""
    return field(metadata={"help": text})


@final
@dataclass(frozen=True)
class Layer:
    """Statistics of one parameter's gradient."""

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
    """Returns the statistics of every parameter's gradient, in order."""
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
    """Returns the singular values of the matrix with a row per output channel, descending; the norm
    of a vector.
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
    """A cluster of `lss` on the whole gradient."""

    centre: float = column("mean of the cluster's entries")
    share: float = column("share of all entries in the cluster")
    entropy: float = column("bits an entry of the cluster, of a histogram like that of a layer")


def clusters(gradient: Mapping[str, Tensor], seed: int = 1) -> list[Cluster]:
    """Returns the clusters that are not empty, by their centres."""
    generator = Generator().manual_seed(seed)
    flat = torch.cat([tensor.flatten() for tensor in gradient.values()])
    model = train_clusters(sample(flat, generator), SIDES, generator)
    rows = zip(*(t.tolist() for t in (model.centres, model.shares, model.entropies)), strict=True)
    return [Cluster(*row) for row in rows if row[1] > 0]


@final
@dataclass(frozen=True)
class EncodingErrors:
    """Relative errors of one encoding, ||decoded - gradient|| / ||gradient||, by kind of entry."""

    spec: str = column("the codec, with the settings that are not its defaults")
    frame_bytes: int = column("the whole message, as it travels")
    everything: float = column(
        "norm of one encoding's error over norm of the gradient; a memory sends the error later"
    )
    positive: float = column("the same over the positive entries alone")
    negative: float = column("the same over the negative entries alone")
    big: float = column("the same over the twentieth of the entries with the largest magnitudes")
    small: float = column("the same over all others")


def reconstruct(
    codec: Codec[Any], gradient: Mapping[str, Tensor], seed: int = 1
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], int]:
    """Returns the flat gradient, the gradient decoded from its frame, and the frame's bytes."""
    (bucket,) = plan([(name, t.shape) for name, t in gradient.items()], codec, ONE)
    flat = torch.cat([gradient[slot.name].flatten() for slot in bucket.slots])
    compressor = Compressor(NoMemory(), Compression(), worker=1, seed=seed)
    frame = compressor.compress(bucket, flat.clone(), 1)
    sent = torch.zeros_like(flat)
    add_frame(bucket, frame, sent, 1.0)
    return flat, sent, frame.size


def losses(codec: Codec[Any], gradient: Mapping[str, Tensor]) -> EncodingErrors:
    """Encodes a gradient once and measures the error by kind of entry."""
    flat, sent, size = reconstruct(codec, gradient)
    magnitude = flat.abs()
    rank = max(1, round(BIG * magnitude.numel()))
    big = magnitude > magnitude.kthvalue(rank).values
    return EncodingErrors(
        str(codec),
        size,
        share(flat, sent, torch.ones_like(big)),
        share(flat, sent, flat > 0),
        share(flat, sent, flat < 0),
        share(flat, sent, big),
        share(flat, sent, ~big),
    )


def share(flat: Tensor, sent: Tensor, mask: Bool[Tensor, " n"]) -> float:
    """Returns the relative error over the entries in `mask`."""
    error = (sent - flat)[mask].norm() / flat[mask].norm().clamp_min(1e-30)
    return float(error)
