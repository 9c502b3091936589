"""Spellings of options and names in other published systems, and ours for each.

The command line takes those that mean the same, and names the successor of all others;
`docs/from-other-systems.md` shows the same table. Options that have our name already are not in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

__all__ = ["NAMES", "NOTES", "OPTIONS", "Spelling", "successor"]

ATOMO, PS, LSS = "ATOMO", "ps_pytorch", "LSS_SGD"
DGC, DRAGONN, MERGECOMP, DRACO = "DGC", "DRAGONN", "MergeComp", "DRACO"
HOROVOD = f"{DRAGONN}, {MERGECOMP}"


@final
@dataclass(frozen=True)
class Spelling:
    """An option of another system."""

    theirs: str
    """The option in the other system, with `-` for `_`."""
    systems: str
    ours: str
    """The text for the user: the option to give in its place, or that the option works."""
    option: str = ""
    """The equal option of Atomo; empty: the option is refused."""
    value: str = ""
    """The implied value, if the option takes none."""


def accepted_spelling(published: str, systems: str, option: str, value: str = "") -> Spelling:
    """Returns an option with the same meaning as an option of Atomo."""
    shown = f"{option} {value}".strip()
    return Spelling(published, systems, f"works, as `{shown}`", option, value)


ALL: Final = (
    accepted_spelling("-n", "mpirun", "--n"),
    Spelling("-host", "mpirun", "`--hostfile`"),
    accepted_spelling("-hostfile", "horovodrun", "--hostfile"),
    Spelling("--cycle-time-ms", "horovodrun", "nothing: a message leaves as soon as it is there"),
    Spelling("-np", "mpirun, horovodrun", "`--n`, in which the master counts as well"),
    Spelling("-H", "mpirun, horovodrun", "`--hostfile`"),
    Spelling("--host", "mpirun", "`--hostfile`"),
    accepted_spelling("--no-cuda", f"{ATOMO}, {PS}, {HOROVOD}", "--enable-gpu", "no"),
    accepted_spelling("--num-replicas-to-aggregate", ATOMO, "--num-aggregate"),
    Spelling("--compress", f"{ATOMO}, {HOROVOD}", "`--code`; without a codec, `--code sgd`"),
    Spelling("--compress-grad", PS, "`--blosc-codec`, lz4 or none; it is lossless, too"),
    Spelling("--mode", f"{PS}, {DRACO}", "`--num-aggregate` leaves late workers out"),
    Spelling("--kill-threshold", PS, "`--num-aggregate` leaves late workers out"),
    Spelling("--bidirection", "others", "`--down`, updates or delta(CODEC)"),
    Spelling("--tuning-dir", ATOMO, "`atomo sweep --train-dir`"),
    Spelling("--tuning-lr", ATOMO, "`atomo sweep --lr`"),
    Spelling("--num-workers", ATOMO, "`--n`, one more than the workers"),
    Spelling("--approach", DRACO, "nothing: workers are trusted"),
    Spelling("--err-mode", DRACO, "nothing: workers are trusted, and no faults are simulated"),
    Spelling("--adversarial", DRACO, "nothing: workers are trusted"),
    Spelling("--worker-fail", DRACO, "nothing: workers are trusted"),
    Spelling("--configs", DGC, "`--config` with files in TOML, such as those in `configs/`"),
    accepted_spelling("--configs.seed", DGC, "--seed"),
    accepted_spelling("--configs.train.num-epochs", DGC, "--epochs"),
    accepted_spelling("--configs.train.batch-size", DGC, "--batch-size"),
    accepted_spelling("--configs.train.num-batches-per-step", DGC, "--batches-per-step"),
    accepted_spelling("--configs.train.warmup-lr-epochs", DGC, "--lr-warmup-epochs"),
    accepted_spelling("--configs.train.schedule-lr-per-epoch", DGC, "--lr-by-epoch"),
    accepted_spelling("--configs.train.optimizer.lr", DGC, "--lr"),
    accepted_spelling("--configs.train.optimizer.momentum", DGC, "--momentum"),
    accepted_spelling("--configs.train.optimizer.nesterov", DGC, "--nesterov"),
    accepted_spelling("--configs.train.optimizer.weight-decay", DGC, "--weight-decay"),
    accepted_spelling("--configs.train.compression.compress-ratio", DGC, "--compress-ratio"),
    accepted_spelling("--configs.train.compression.warmup-epochs", DGC, "--warmup-epochs"),
    accepted_spelling("--configs.dataset.root", DGC, "--data-dir"),
    Spelling("--configs.KEY", DGC, "a key of a file for `--config`, as in `configs/dgc/wm5.toml`"),
    Spelling("--devices", DGC, "`--enable-gpu`, yes or no"),
    Spelling("--evaluate", DGC, "`atomo evaluate --model-dir` the run's folder"),
    Spelling("--suffix", DGC, "`--train-dir`"),
    accepted_spelling("--compressor", HOROVOD, "--code"),
    accepted_spelling("--model", HOROVOD, "--network"),
    accepted_spelling("--net-type", DRAGONN, "--network"),
    accepted_spelling("--base-lr", HOROVOD, "--lr"),
    accepted_spelling("-lr", MERGECOMP, "--lr"),
    accepted_spelling("-b", MERGECOMP, "--batch-size"),
    accepted_spelling("-net", MERGECOMP, "--network"),
    accepted_spelling("--epoch", DRAGONN, "--epochs"),
    accepted_spelling("--wd", HOROVOD, "--weight-decay"),
    accepted_spelling("--adam", MERGECOMP, "--optimizer", "adam"),
    accepted_spelling("--val-batch-size", HOROVOD, "--test-batch-size"),
    accepted_spelling("--test-size", DRAGONN, "--test-batch-size"),
    accepted_spelling("--test-every", DRAGONN, "--eval-freq"),
    accepted_spelling("--print-every", DRAGONN, "--log-interval"),
    accepted_spelling("--log-dir", HOROVOD, "--train-dir"),
    accepted_spelling("--comm", HOROVOD, "--comm-type"),
    Spelling(
        "--config-file",
        MERGECOMP,
        "`--config configs/detection/maskrcnn.toml`; the YAML of detectron2 is not read",
    ),
    Spelling("--fusion-num", MERGECOMP, "`--fusion count:GROUPS`, or `layer` for 0"),
    Spelling("--scheduler", MERGECOMP, "`--fusion mergecomp`, or `auto`, the best of all groups"),
    Spelling("--scheduler-baseline", MERGECOMP, "`--fusion layer`"),
    Spelling("--scheduler-epoch", MERGECOMP, "nothing: costs are measured, not steps"),
    Spelling("--scheduler-step", MERGECOMP, "nothing: costs are measured, not steps"),
    Spelling("--scheduler-warmup", MERGECOMP, "nothing: costs are measured, not steps"),
    Spelling("--threshold", DRAGONN, "`--dense-below N+1`, or `--code 'dragonn(threshold=N)'`"),
    accepted_spelling("--compress-iter", DRAGONN, "--dense-steps"),
    Spelling("--batching", DRAGONN, "nothing: payloads are always added into one sum"),
    Spelling("--pcie", DRAGONN, "nothing: set NCCL's variables yourself"),
    Spelling("--benchmark", DRAGONN, "`atomo bench`"),
    Spelling("--speed-test", HOROVOD, "`atomo throughput`"),
    Spelling("--num-iters", MERGECOMP, "`atomo throughput --num-iters`"),
    Spelling("--num-batches-per-iter", MERGECOMP, "`atomo throughput --num-batches-per-iter`"),
    Spelling("--num-warmup-batches", MERGECOMP, "`atomo throughput --num-warmup-batches`"),
    Spelling("--fp16-allreduce", HOROVOD, "`--code fp16`"),
    Spelling("--use-adasum", HOROVOD, "nothing: gradients are averaged"),
    Spelling("--gradient-predivide-factor", HOROVOD, "nothing: gradients are averaged"),
    accepted_spelling("--batches-per-allreduce", HOROVOD, "--batches-per-step"),
    Spelling("--checkpoint-format", HOROVOD, "`--train-dir`"),
    Spelling("--val-dir", HOROVOD, "`--data-dir`, in which each data set has its folder"),
    Spelling("--pretrained", DRAGONN, "`--weights FILE.npz`, the file itself"),
    Spelling("--hidden-dim", DRAGONN, "`--task 'labels(hidden=N)'`"),
)
KEY: Final = "--configs.KEY"  # any key of DGC's settings
OPTIONS: Final[Mapping[str, Spelling]] = MappingProxyType(
    {spelling.theirs: spelling for spelling in ALL}
)

# Names by kind, folded as `names.fold` does. A name that Atomo has too means Atomo's.
NAMES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "codec": MappingProxyType(
            {
                "none": "sgd",
                "lsssgd": "lss",
                "randomk": "randk",
                "atopk": "dragonn",
                "1bit": "onebit",
                "qsvd": "svd(rank=3, factors=qsgd(bits=4))",
            }
        ),
        "comm-type": MappingProxyType(
            {"bcast": "ParameterServer", "ps": "ParameterServer"}  # files keep Bcast, too
        ),
        "data set": MappingProxyType({"amz630k": "amz670k", "text8sub": "text8"}),
        "network": MappingProxyType(
            {
                f"{name.lower()}imagenet": name
                for name in ("ResNet18", "ResNet34", "ResNet50", "VGG16", "VGG19")
            }
        ),
    }
)


NOTES: Final[Mapping[str, str]] = MappingProxyType(
    {"VGG11": "--network VGG11 has no batch norm; the VGG11 of ATOMO had it: --network VGG11_BN"}
)
"""Notes on networks that differ from those of the same name elsewhere."""


def successor(option: str) -> str:
    """Names the replacement of an option, as the end of an error; empty: no system has the option.

    >>> successor("--fusion-num")
    'in place of the option of MergeComp: `--fusion count:GROUPS`, or `layer` for 0'
    """
    name = option.replace("_", "-") if option.startswith("--") else option
    spelling = OPTIONS.get(name) or (OPTIONS[KEY] if name.startswith(KEY[:-3]) else None)
    if spelling is None or spelling.option:  # an accepted option belongs to another command
        return ""
    return f"in place of the option of {spelling.systems}: {spelling.ours}"
