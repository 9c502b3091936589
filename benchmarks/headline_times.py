"""Times of the published headlines, measured here: compression, exchanges, groupings.

    python benchmarks/headline_times.py encode --peers PEERS     # milliseconds of one rank
    python3 tools/virtual_cluster.py up --hosts 4 --rate 1gbit
    python benchmarks/headline_times.py exchange --peers PEERS   # seconds over links
    python benchmarks/headline_times.py grouping --data-dir data # layer-wise against merged
    python benchmarks/headline_times.py simulate --peers PEERS --data-dir data # 4, 16 workers
    python benchmarks/headline_times.py table                    # the records as tables

PEERS is a folder with published code: `GRACE` (github.com/sands-lab/grace) for its `dgc`, and
`ATOMO` (github.com/hwang595/ATOMO) for its `svd` and `qsgd`. Without `--peers` their rows are left
out. Records are lines of JSON in benchmarks/records; `table` prints the last record of each row.

`encode` compresses the gradient of ResNet18 on one thread: momentum, memory, selection, and for
Atomo the frame too. The methods take turns. `exchange` averages this gradient over links of 100
Mbit/s and 1 Gbit/s, as exchange.py does; with `--gradient linear` it is the gradient of a logistic
regression with ten million features, of which a batch touches about one in a hundred, and `sparse`
is PyTorch's all-reduce of sparse tensors. `grouping` trains ResNet20 with two ranks on this
machine, with a message for each layer and with the groups that MergeComp's search finds, and one
rank alone without compression. `simulate` predicts steps of ATOMO's setting from measured costs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

import atomo
from atomo.core.process.allocator import keep_freed_memory
from ddp_train import add_group_options, join, wrapped
from exchange import Replay, gradient_of, seconds
from fusion import steps_ms
from parts.headline_times.atomo import ATOMO_CODES, AtomoEncoder
from parts.headline_times.grace import GraceDGC
from parts.headline_times.simulated import simulate
from parts.headline_times.tables import print_tables
from time_to_accuracy import CLUSTER, hosts_of, on_hosts

RECORDS: Final = Path(__file__).parent / "records" / "headline_times.jsonl"
HOSTS: Final = Path("clusters/virtual/hosts_address")
RATES: Final = ("100mbit", "1gbit")
NETWORK: Final = "ResNet18"
GRACE: Final = "grace dgc"
ENCODERS: Final = (
    GRACE, "dgc(ratio=0.001)", "dragonn(ratio=0.001)", *ATOMO_CODES, "svd(rank=3)",
    "svd(rank=3, matricisation=filters)", "qsgd(bits=4)", "terngrad", "lss", "sketchml",
)  # fmt: skip
HOOKS: Final = (
    "none", GRACE, "atomo:dgc(ratio=0.001)", "atomo:dragonn(ratio=0.001)", "atomo:svd(rank=3)",
    "atomo:svd(rank=3, matricisation=filters)", "atomo:qsgd(bits=2)", "atomo:qsgd(bits=4)",
    "atomo:terngrad", "atomo:lss", "atomo:sketchml",
)  # fmt: skip
SPARSE: Final = "sparse"
LINEAR: Final = "linear"
LINEAR_HOOKS: Final = ("none", SPARSE, "atomo:sketchml")
FEATURES: Final = 10_000_000  # of the linear model
SAMPLES: Final = 2_000  # of each host, for its gradient
ACTIVE: Final = 100  # features of a sample
CODES: Final = (
    "fp16", "dgc(ratio=0.01)", "topk(ratio=0.01)", "randk(ratio=0.01)", "qsgd", "signsgd",
    "efsignsgd", "onebit",
)  # fmt: skip
GROUPINGS: Final = ("layer", "mergecomp")
PARTS: Final = ("encode", "exchange", "grouping", "simulate", "table")


def main() -> None:
    """Carries out one part."""
    options = parse()
    if options.part == "table":
        print_tables(read())
    elif options.part == "encode":
        write("encode", encode(options))
    elif options.part == "grouping":
        write("grouping", grouping(options))
    elif options.part == "simulate":
        write(
            "simulate",
            simulate(NETWORK, options.data_dir, options.peers and options.peers / "ATOMO"),
        )
    elif options.rank is not None:
        exchange(options)
    else:
        start_ranks(options)


def parse() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--peers", type=Path, help="a folder with GRACE and ATOMO")
    parser.add_argument("--data-dir", default="data", help="with CIFAR-10")
    parser.add_argument("--times", type=int, default=7, help="repetitions")
    parser.add_argument("--rates", nargs="+", default=RATES, help="of the links")
    parser.add_argument("--gradient", choices=(NETWORK, LINEAR), default=NETWORK)
    parser.add_argument("--methods", nargs="+", help="of `exchange`; all if not given")
    parser.add_argument("--code", nargs="+", default=CODES, help="codecs of `grouping`")
    parser.add_argument("--rate", default="", help="of the links of this rank; set by `exchange`")
    add_group_options(parser)
    options = parser.parse_args()
    options.methods = options.methods or (LINEAR_HOOKS if options.gradient == LINEAR else HOOKS)
    return options


def read() -> list[dict[str, Any]]:
    """Returns all records."""
    return [json.loads(line) for line in RECORDS.read_text().splitlines()]


def write(part: str, records: Iterator[dict[str, Any]]) -> None:
    """Appends records to the file, each as soon as it is there."""
    for record in records:
        line = json.dumps({"part": part, "time": time.strftime("%Y-%m-%d %H:%M")} | record)
        with RECORDS.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)


def with_peers(methods: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Returns the methods that can run: published ones need their code."""
    published = (GRACE, *ATOMO_CODES)
    return [method for method in methods if method not in published or options.peers is not None]


def encode(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Times the compression of a gradient on one thread, the methods in turns."""
    keep_freed_memory()
    torch.set_num_threads(1)
    gradient = gradient_of(NETWORK, 0)
    calls = {m: encoder(m, gradient, options) for m in with_peers(ENCODERS, options)}
    times: dict[str, list[float]] = {method: [] for method in calls}
    sizes: dict[str, int] = {}
    for turn in range(2 + options.times):
        for method, call in calls.items():
            started = time.perf_counter()
            sizes[method] = call()
            if turn >= 2:  # memories fill, and loops are compiled, in the first turns
                times[method].append(1e3 * (time.perf_counter() - started))
    for method, of_method in times.items():
        milliseconds = [round(ms, 2) for ms in of_method]
        yield {"method": method, "ms": milliseconds, "bytes": sizes[method]}


def encoder(
    method: str, gradient: dict[str, torch.Tensor], options: argparse.Namespace
) -> Callable[[], int]:
    """Returns a function that compresses the gradient once, and returns the bytes."""
    if method == GRACE:
        peer = GraceDGC(options.peers / "GRACE")
        return lambda: sum(
            part.nbytes
            for name, tensor in gradient.items()
            for part in peer.compress(tensor, name)[0]
        )
    if method in ATOMO_CODES:
        published = AtomoEncoder(options.peers / "ATOMO", method)
        return lambda: sum(map(len, published.encode(gradient)))
    # With the others momentum is the optimizer's, as it is published.
    own = atomo.Encoder(method, momentum=0.9 if method in ENCODERS[1:3] else 0.0)
    return lambda: len(own.encode(gradient))


def start_ranks(options: argparse.Namespace) -> None:
    """Starts a rank on each host, at each rate of the links."""
    hosts = hosts_of(HOSTS)
    for rate in options.rates:
        for number in range(1, len(hosts) + 1):
            line = [sys.executable, CLUSTER, "throttle", f"h{number}", rate]
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        words = [__file__, "exchange", "--rate", rate, "--times", str(options.times)]
        words += ["--peers", str(options.peers)] if options.peers else []
        words += ["--gradient", options.gradient, "--methods", *options.methods]
        print(on_hosts(hosts, words, Path("runs/headline_times")), end="", flush=True)


def exchange(options: argparse.Namespace) -> None:
    """Runs every method in turn on one rank; rank 0 writes the records."""
    keep_freed_memory()
    join(options)
    records = exchanges(options)
    if options.rank == 0:
        write("exchange", records)
    else:
        list(records)
    dist.destroy_process_group()


def exchanges(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the seconds of a backward pass with an exchange by each method."""
    linear = options.gradient == LINEAR
    gradient = linear_gradient(options.rank) if linear else gradient_of(NETWORK, options.rank)
    for method in with_peers(options.methods, options):
        step = stepper(method, gradient, options)
        for _ in range(2):
            step()
        cpu_s = time.process_time()
        times = [seconds(step) for _ in range(options.times)]
        cpu_s = (time.process_time() - cpu_s) / options.times
        yield {
            "gradient": options.gradient, "method": method, "rate": options.rate,
            "hosts": options.world,
            "s": [round(s, 4) for s in times], "cpu_s": round(cpu_s, 4),
        }  # fmt: skip


def linear_gradient(rank: int) -> dict[str, torch.Tensor]:
    """Returns the gradient of a logistic regression, whose features are as frequent as words."""
    generator = torch.Generator().manual_seed(1 + rank)
    draws = torch.rand(SAMPLES, ACTIVE, generator=generator)
    features = (FEATURES**draws).long() - 1  # Zipf's law
    errors = torch.randn(SAMPLES, 1, generator=generator) / SAMPLES
    gradient = torch.zeros(FEATURES)
    gradient.index_add_(0, features.flatten(), errors.expand(-1, ACTIVE).flatten())
    return {"weight": gradient}


def stepper(
    method: str, gradient: dict[str, torch.Tensor], options: argparse.Namespace
) -> Callable[[], object]:
    """Returns a function that runs a backward pass and averages the gradients."""
    if method == SPARSE:
        entries = [tensor.to_sparse() for tensor in gradient.values()]
        return lambda: [dist.all_reduce(tensor.clone()) for tensor in entries]
    if method != GRACE:
        ddp = wrapped(Replay(gradient), method, momentum=0.9, init_sync=False)
        return lambda: ddp().backward()
    peer, model = GraceDGC(options.peers / "GRACE"), Replay(gradient)

    def step() -> None:
        model.zero_grad()
        model().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            parameter.grad = peer.average(parameter.grad, name)

    return step


def grouping(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the milliseconds of a step with two ranks, by codec and grouping."""
    job = argparse.Namespace(
        n=2, network="ResNet20", dataset="Cifar10", comm_type="Allgather", hostfile="",
        batch_size=32, steps=20, data_dir=options.data_dir,
    )  # fmt: skip
    alone = argparse.Namespace(**vars(job) | {"n": 1, "comm_type": "Allreduce"})
    runs = [(alone, "sgd", "alone")]
    runs += [(job, code, way) for code in options.code for way in GROUPINGS]
    for of_run, code, way in runs:
        times = steps_ms(of_run, code, "one" if way == "alone" else way)
        median = round(statistics.median(times), 2)
        yield {"code": code, "grouping": way, "ms": median, "steps": len(times)}


if __name__ == "__main__":
    main()
