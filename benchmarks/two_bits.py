"""Two bits for a value that a sparsifier sends: the share of the energy that is lost, and the bits.

    python benchmarks/two_bits.py [--data-dir data]

Of 64 of 4096 entries in each tile, drawn from three distributions, and of real differences of
weights after 30 steps of AdamW from the initial weights: two networks on Digits, and the model of
characters of local_steps.py, also from step 300 to 330:

* bins      four bins of 1.5 standard deviations, decoded to the mean of each bin, as we read
            the description of SparseLoCo; the bins are those of a tile
* signs     the sign and the mean magnitude of a tile; 1 bit
* tile      `lloydmax(bucket_size=64)`: two magnitudes for 64 values
* layer     `lloydmax(bucket_size=0)`: two magnitudes for all values

`places` are the bits of a place under the Rice code; `bound` is log2 C(n, k) of the tiles over the
number sent. The last table compares times with those of a copy, on one thread.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Generator, Tensor
from torch.distributions import Laplace, StudentT

from atomo.analysis.measure import copy_time, timed
from atomo.codecs import Codec, make_codec
from atomo.codecs.sparse.tiletopk import TileTopK
from atomo.core.randomness import derive
from atomo.kernels.tiles import tile_sizes
from atomo.training.job.shard import Shard
from atomo.workloads import task_of
from atomo.workloads.datasets import epoch_seed
from parts.local_steps.workloads import Characters

NETWORKS = ("LeNet", "FC")
STEPS, BATCH, RATE = 30, 32, 1e-3
SIDE = 1024  # of the drawn matrices


def drawn() -> dict[str, list[Tensor]]:
    """Returns a matrix of each distribution."""
    torch.manual_seed(0)
    shape = torch.Size((SIDE, SIDE))
    return {
        "Gaussian": [torch.randn(shape)],
        "Laplace": [Laplace(0.0, 1.0).sample(shape)],
        "Student-t, 3 degrees": [StudentT(3.0).sample(shape)],
    }


def difference(network: str, data_dir: Path) -> list[Tensor]:
    """Returns the initial weights less those after some steps, of layers of two dimensions or
    more.
    """
    work = task_of("Digits").open("Digits", data_dir)
    torch.manual_seed(derive(1, "weights"))
    model = work.build(network)
    anchor = [weight.detach().clone() for weight in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    shard = Shard(len(work.train), 1, 0, BATCH, 1)
    for step in range(1, STEPS + 1):
        batch = work.train.batch(shard.indices(step), epoch_seed(1, shard.epoch(step)))
        optimizer.zero_grad()
        loss = work.objective.loss(model(*batch.inputs), batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    pairs = zip(anchor, model.parameters(), strict=True)
    return [(before - after.detach()) for before, after in pairs if before.ndim > 1]


def characters(start: int) -> list[Tensor]:
    """Returns the weights of a model of characters after `start` steps less those after `STEPS`
    more, of layers of two dimensions or more.
    """
    work = Characters(Path())
    torch.manual_seed(derive(1, "weights"))
    model = work.build()
    optimizer = work.optimizer(model, work.rate)
    anchor: list[Tensor] = []
    for step in range(1, start + STEPS + 1):
        if step == start + 1:
            anchor = [weight.detach().clone() for weight in model.parameters()]
        optimizer.param_groups[0]["lr"] = work.rate * work.factor(step, start + STEPS)
        optimizer.zero_grad()
        loss = work.loss(model, work.batch(step, 0, 1, 1))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    pairs = zip(anchor, model.parameters(), strict=True)
    return [(before - after.detach()) for before, after in pairs if before.ndim > 1]


def bins(values: Tensor) -> Tensor:
    """Returns what four bins of 1.5 standard deviations decode to."""
    centred = values - values.mean()
    width = 1.5 * centred.norm() / math.sqrt(max(1, len(values) - 1))
    numbers = (centred / width.clamp_min(1e-30) + 2).round().clamp(0, 3).long()
    sums = torch.zeros(4).index_add_(0, numbers, values)
    return (sums / torch.bincount(numbers, minlength=4).clamp_min(1))[numbers]


def signs(values: Tensor) -> Tensor:
    """Returns what signs and the mean magnitude decode to."""
    return values.sign() * values.abs().mean()


def levels(values: Tensor) -> Tensor:
    """Returns what two magnitudes decode to."""
    codec = make_codec("lloydmax(bucket_size=0)")
    return codec.decode(codec.encode(values, Generator()), values.shape)


def sent_by_tile(layer: Tensor) -> list[Tensor]:
    """Returns the values that each tile of a layer sends."""
    codec = TileTopK()
    sent = codec.decode(codec.encode(layer, Generator()), layer.shape).view(layer.shape[0], -1)
    tiles = [
        tile for band in torch.split(sent, codec.tile) for tile in torch.split(band, codec.tile, 1)
    ]
    return [values for tile in tiles if len(values := tile[tile != 0])]


def lost(groups: list[Tensor], code: Callable[[Tensor], Tensor]) -> float:
    """Returns the share of the energy that coding each group loses."""
    error = sum(float((code(group) - group).square().sum()) for group in groups)
    return error / sum(float(group.square().sum()) for group in groups)


def log2_choose(n: int, k: int) -> float:
    """Returns the bits that identify one set of k out of n entries."""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def places(layers: list[Tensor]) -> tuple[float, float]:
    """Returns the bits of a place, and their bound."""
    codec, bits, bound, count = TileTopK(), 0, 0.0, 0
    for layer in layers:
        payload = codec.encode(layer, Generator())
        tiling = codec.tiling(layer.shape)
        pairs = zip(tile_sizes(tiling).flatten(), codec.counts(tiling).flatten(), strict=True)
        bound += sum(log2_choose(int(size), int(share)) for size, share in pairs)
        bits, count = bits + 8 * len(payload.indices), count + int(payload.count)
    return bits / count, bound / count


def row(name: str, layers: list[Tensor]) -> str:
    """Returns one line of the first table."""
    tiles = [values for layer in layers for values in sent_by_tile(layer)]
    whole = [torch.cat(sent_by_tile(layer)) for layer in layers]
    shares = [lost(tiles, code) for code in (bins, signs, levels)]
    cells = [f"{share:.4f}" for share in (*shares, lost(whole, levels))]
    return (
        f"| {name} | {' | '.join(cells)} | " + " | ".join(f"{b:.2f}" for b in places(layers)) + " |"
    )


def times(spec: str, gradient: Tensor, copy_s: float) -> str:
    """Returns one line of the second table."""
    codec: Codec[object] = make_codec(spec)
    kept, total, generator = gradient.clone(), torch.zeros_like(gradient), Generator()
    payload = codec.encode(gradient, generator)
    runs: tuple[Callable[[], object], ...] = (
        lambda: codec.encode(gradient, generator),
        lambda: codec.encode_residual(gradient, kept, generator),
        lambda: codec.add_decoded(payload, total),
    )
    cells = [f"{min(timed(run) for _ in range(7)) / copy_s:.2f}" for run in runs]
    bits = 8 * sum(part.nbytes for part in codec.sections(payload)) / gradient.numel()
    return f"| `{spec}` | {' | '.join(cells)} | {bits:.3f} |"


def main() -> None:
    """Reads the command line, measures, prints two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    real = {f"{name} on Digits": difference(name, options.data_dir) for name in NETWORKS}
    real |= {f"characters, step {start} on": characters(start) for start in (0, 300)}
    print("| values | bins | signs | tile | layer | places | bound |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, layers in (drawn() | real).items():
        print(row(name, layers), flush=True)
    gradient = torch.randn(3000, 4096, generator=Generator().manual_seed(0))
    copy_s = copy_time(gradient, 7)
    print("\n| codec | encode / copy | residual / copy | decode-add / copy | bits |")
    print("| --- | --- | --- | --- | --- |")
    for spec in ("tiletopk", "tiletopk(values=lloydmax)", "topk(ratio=0.0156)", "lloydmax"):
        print(times(spec, gradient, copy_s), flush=True)


if __name__ == "__main__":
    main()
