"""Runs of headlines.py: published settings of each method, and experiments."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = [
    "DDP_POWER_SGD",
    "DDP_RANK",
    "EPOCHS",
    "METHODS",
    "PARAMETERS",
    "PUBLISHED",
    "WORKERS",
    "Run",
    "plan",
]

EPOCHS: Final = 15
WORKERS: Final = 2
PARAMETERS: Final = 269_722

COMMON: Final = (
    "--network parts.headlines.train:network --dataset Cifar10 --batch-size 128 --threads 1 "
    f"--n {WORKERS} --lr 0.1 --lr-scale-by-workers --lr-warmup-epochs 1 --schedule cosine "
    "--momentum 0.9 --nesterov no --weight-decay 1e-4 --precision fp32"
)
"""DGC's published training of ResNet-20. Of its 200 epochs the rate rises in 5; here in one."""

GATHER: Final = "--comm-type Allgather --code"
DGC: Final = f"{GATHER} dgc(ratio=0.001) --code-schedule " + ";".join(
    f"{place / 5}:dgc(ratio={ratio})"
    for place, ratio in enumerate((0.25, 0.063, 0.016, 0.004, 0.001))
)
"""DGC's ratios of five epochs, in one; --code is the last."""
NESTEROV_BF16: Final = "--nesterov yes --precision bf16"

METHODS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dense": "--comm-type Allreduce --code sgd",
        "dgc": f"{DGC} --memory dgc",
        "topk": f"{GATHER} topk(ratio=0.01)",
        "powersgd": "--comm-type PowerSGD --svd-rank 4",
        "svd": f"{GATHER} svd(rank=3)",
        "qsgd": f"{GATHER} qsgd(bits=4,bucket_size=512)",
        "natural": f"{GATHER} natural",
        "terngrad": f"{GATHER} terngrad",
        "efsignsgd": f"{GATHER} efsignsgd",
        "dragonn": f"{GATHER} dragonn(ratio=0.001)",
        "lss": f"{GATHER} lss",
        "sketchml": f"{GATHER} sketchml",
        "svd-filters": f"{GATHER} svd(rank=3,matricisation=filters)",
        # Experiments; docs/archive/headlines.md has the prediction of each.
        "dgc-warm-5": f"{GATHER} dgc(ratio=0.001) --memory dgc --warmup-epochs 5",
        "dgc-residual": f"{DGC} --memory residual",
        "dgc-unmasked": f"{DGC} --memory dgc(masking=False)",
        "dgc-bucket": DGC.replace("dgc(", "dgc(scope=bucket,") + " --memory dgc",
        "topk-layer": f"{GATHER} topk(ratio=0.01,scope=layer)",
        "topk-slow": f"{GATHER} topk(ratio=0.01) --lr 0.05",
        "dense-slow": "--comm-type Allreduce --code sgd --lr 0.05",
        "topk-warm": f"{GATHER} topk(ratio=0.01) --warmup-epochs 1",
        "powersgd-dgc": "--comm-type PowerSGD --svd-rank 4 --memory dgc",
        "svd-undamped": f"{GATHER} svd(rank=3) --noise-damping no",
        "svd-top": f"{GATHER} svd(rank=3,selection=top)",
        "svd-top-unmasked": f"{GATHER} svd(rank=3,selection=top) --memory dgc(masking=False)",
        "svd-late": f"{GATHER} svd(rank=3) --code-schedule 0:svd(rank=3);7:svd(rank=6)",
        "dense-nesterov": "--comm-type Allreduce --code sgd --nesterov yes",
        "dense-nesterov-bf16": f"--comm-type Allreduce --code sgd {NESTEROV_BF16}",
        "powersgd-nesterov": "--comm-type PowerSGD --svd-rank 4 --nesterov yes",
        "powersgd-dgc-nesterov": "--comm-type PowerSGD --svd-rank 4 --memory dgc --nesterov yes",
        "powersgd-dgc-unmasked-nesterov": "--comm-type PowerSGD --svd-rank 4 "
        "--memory dgc(masking=False) --nesterov yes",
        "acpsgd-nesterov": "--comm-type ACPSGD --svd-rank 4 --nesterov yes",
        "acpsgd-unmasked-nesterov": "--comm-type ACPSGD --svd-rank 4 "
        "--memory dgc(masking=False) --nesterov yes",
        "acpsgd-residual-nesterov": "--comm-type ACPSGD --svd-rank 4 --memory residual "
        "--nesterov yes",
        "powersgd-2-nesterov": "--comm-type PowerSGD --svd-rank 2 --nesterov yes",
        "powersgd-late-nesterov": "--comm-type PowerSGD --nesterov yes "
        "--code-schedule 0:svd(rank=4);10:svd(rank=8)",
        "topk-nesterov": f"{GATHER} topk(ratio=0.01) --nesterov yes",
        "dgc-nesterov": f"{DGC} --memory dgc --nesterov yes",
        "qsgd-nesterov": f"{GATHER} qsgd(bits=4,bucket_size=512) --nesterov yes",
        "natural-nesterov": f"{GATHER} natural --nesterov yes",
        "svd-top-nesterov": f"{GATHER} svd(rank=3,selection=top) --nesterov yes",
        "svd-top-unmasked-nesterov": f"{GATHER} svd(rank=3,selection=top) "
        "--memory dgc(masking=False) --nesterov yes",
        "efsignsgd-nesterov": f"{GATHER} efsignsgd --nesterov yes",
        "efsignsgd-unmasked-nesterov": f"{GATHER} efsignsgd --memory dgc(masking=False) "
        "--nesterov yes",
        "lss-nesterov": f"{GATHER} lss --nesterov yes",
        "efsignsgd-nesterov-bf16": f"{GATHER} efsignsgd {NESTEROV_BF16}",
        "terngrad-nesterov-bf16": f"{GATHER} terngrad {NESTEROV_BF16}",
        "terngrad-clip-4-nesterov-bf16": f"{GATHER} terngrad(clip=4) {NESTEROV_BF16}",
        "lss-nesterov-bf16": f"{GATHER} lss {NESTEROV_BF16}",
        "dragonn-nesterov-bf16": f"{GATHER} dragonn(ratio=0.001) {NESTEROV_BF16}",
        "svd-nesterov-bf16": f"{GATHER} svd(rank=3) {NESTEROV_BF16}",
        "svd-filters-nesterov-bf16": f"{GATHER} svd(rank=3,matricisation=filters) {NESTEROV_BF16}",
    }
)
DDP_POWER_SGD: Final = "ddp-powersgd"
"""PyTorch's hook in DDP, beside the method `powersgd`."""
DDP_RANK: Final = 4
PUBLISHED: Final = (
    *("dense", "dgc", "topk", "svd", "powersgd", "qsgd"),
    *("natural", "terngrad", "efsignsgd", "dragonn", "lss", "sketchml", "svd-filters"),
)
"""Methods that are no experiments."""
ORDER: Final = (
    (1, PUBLISHED),
    (
        1,
        (
            "dgc-warm-5",
            "topk-warm",
            "topk-layer",
            "topk-slow",
            "dgc-bucket",
            "dense-slow",
            "powersgd-dgc",
            "svd-undamped",
            "svd-top",
            "svd-top-unmasked",
            "svd-late",
            "dgc-unmasked",
            "dgc-residual",
            "powersgd-nesterov",
            "dense-nesterov",
            "svd-top-nesterov",
            "svd-top-unmasked-nesterov",
            "topk-nesterov",
            "dgc-nesterov",
            "efsignsgd-nesterov",
            "efsignsgd-unmasked-nesterov",
            "lss-nesterov",
            "powersgd-dgc-nesterov",
            "powersgd-dgc-unmasked-nesterov",
            "acpsgd-nesterov",
            "acpsgd-unmasked-nesterov",
            "acpsgd-residual-nesterov",
            "powersgd-2-nesterov",
            "powersgd-late-nesterov",
            "natural-nesterov",
            "qsgd-nesterov",
        ),
    ),
    (2, ("dense", "dgc", "topk", "svd", "powersgd", "qsgd")),
    (2, ("dense-nesterov", "dgc-nesterov", "topk-nesterov", "powersgd-nesterov")),
    (2, ("powersgd-late-nesterov", "qsgd-nesterov", "svd-top-nesterov", "natural-nesterov")),
    (3, ("dense",)),
    (
        1,
        (
            "dense-nesterov-bf16",
            "efsignsgd-nesterov-bf16",
            "terngrad-nesterov-bf16",
            "terngrad-clip-4-nesterov-bf16",
            "lss-nesterov-bf16",
            "dragonn-nesterov-bf16",
            "svd-filters-nesterov-bf16",
            "svd-nesterov-bf16",
        ),
    ),
    (2, ("svd-nesterov-bf16", "dense-nesterov-bf16")),
    (3, ("dense-nesterov",)),
)


@dataclass(frozen=True)
class Run:
    """A training run of ResNet-20."""

    method: str
    seed: int
    epochs: int

    @property
    def words(self) -> str:
        """The options of `atomo train`."""
        return f"{COMMON} --epochs {self.epochs} --seed {self.seed} {METHODS[self.method]}"


def plan(epochs: int) -> Iterator[Run]:
    """Yields all runs of a length, the most informative first."""
    for seed, methods in ORDER:
        yield from (Run(method, seed, epochs) for method in methods)
