"""Time to encode outside a training run: `atomo.encode`, `atomo.Encoder`, and the codec alone.

The three take turns for several rounds, on one tensor. A figure is the median processor time,
relative to that of a copy of the tensor. The codec alone encodes without packing a frame.

python benchmarks/encoder.py [--entries 11173962] [--rounds 15] [--codes 'sgd; fp16']
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor

import atomo

CODES = "sgd; fp16; bf16; topk(ratio=0.01); qsgd(bits=4)"


def calls_of(code: str, gradient: Tensor) -> Mapping[str, Callable[[], object]]:
    """Returns the calls to compare, by the name of their column."""
    codec, generator = atomo.make_codec(code), Generator().manual_seed(0)
    memory = atomo.make_memory("residual")
    feeds_back = atomo.default_memory(code) == "residual"
    plain, with_residual = (
        atomo.Encoder(code, memory="none"),
        atomo.Encoder(code, memory="residual"),
    )
    calls: dict[str, Callable[[], object]] = {
        "codec": lambda: codec.encode(gradient, generator),
        "encode": lambda: atomo.encode(gradient, code, seed=1),
        "Encoder": lambda: plain.encode(gradient),
    }
    if feeds_back:
        calls["encode, residual"] = lambda: atomo.encode([gradient], code, seed=1, memory=memory)
        calls["Encoder, residual"] = lambda: with_residual.encode(gradient)
    return calls


def measure(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the median processor time of each call, seconds; the first two rounds do
    not count.
    """
    times = defaultdict[str, list[float]](list)
    for _ in range(rounds + 2):
        for name, call in calls.items():
            began = time.process_time()
            call()
            times[name].append(time.process_time() - began)
    return {name: statistics.median(seconds[2:]) for name, seconds in times.items()}


def main() -> None:
    """Prints a line for each codec."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=11_173_962, help="of a ResNet18")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--codes", default=CODES, help="separated by ;")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gradient = torch.randn(options.entries, generator=Generator().manual_seed(0))
    destination = torch.empty_like(gradient)
    for code in (code.strip() for code in options.codes.split(";")):
        calls = {"copy": lambda: destination.copy_(gradient), **calls_of(code, gradient)}
        medians = measure(calls, options.rounds)
        copy = medians.pop("copy")
        print(f"{code}: " + ", ".join(f"{name} {s / copy:.1f}" for name, s in medians.items()),
              f"copies of {1e3 * copy:.1f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
