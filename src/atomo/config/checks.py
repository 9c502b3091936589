"""Checks of settings that are each in range, but contradict each other."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from atomo.config.comm_types import COMM_TYPES, PARAMETER_SERVER
from atomo.core.names import resolve, truth
from atomo.errors import ConfigError
from atomo.memory import kind_of
from atomo.options.rates import RATES, SCHEDULES, parse_milestones
from atomo.options.weight_sync import AUTO_DOWNLINK, WEIGHTS, canonical_downlink, downlink_name

__all__ = [
    "ADAMS", "ANYWAY", "CHOICES", "CPU", "MPI_AUTO", "check_folders", "check_hosts",
    "check_precision", "check_schedule", "check_update", "master_down", "wants_gpu",
]  # fmt: skip

ANYWAY: Final = "anyway"
"""`--resume` that continues in the folder of the run, with other settings than before."""
ADAMS: Final = ("adam", "adamw")
PRECISIONS: Final = ("fp32", "bf16", "fp16")
CPU: Final = "cpu"
GPU: Final = "gpu"
MASTER_DEVICES: Final = (CPU, GPU)
MPI_AUTO: Final = "auto"
CHOICES: Final[Mapping[str, Iterable[str]]] = MappingProxyType(
    {
        "optimizer": RATES,
        "log_format": ("text", "atomo"),
        "precision": PRECISIONS,
        "schedule": SCHEDULES,
        "comm_type": COMM_TYPES,
        "cuda_aware_mpi": (MPI_AUTO, "no"),
        "master_device": MASTER_DEVICES,
        "evaluator": ("local", "none"),
    }
)
"""The values of the settings that take one of a few names."""


def check_hosts(hostfile: str, slurm: bool) -> None:
    """Raises ConfigError if both a host file and SLURM name the hosts."""
    if hostfile and slurm:
        raise ConfigError(
            f"--hostfile {hostfile} and --slurm both name the hosts; give only one of them"
        )


def check_folders(data_dir: str, resume: str) -> None:
    """Raises ConfigError for an empty folder name, which `Path` reads as the current folder."""
    if not data_dir.strip():
        raise ConfigError("--data-dir is empty; give a folder, such as data, or . for this one")
    if not resume.strip():
        raise ConfigError(
            "--resume is empty; give auto, anyway, never, or the folder of a run, such as . for "
            "this one"
        )


def check_schedule(schedule: str, milestones: str) -> None:
    """Raises ConfigError for an unknown schedule, or for multistep without milestones."""
    name = resolve("schedule", schedule, SCHEDULES)
    if not parse_milestones(milestones) and name == "multistep":
        raise ConfigError("--schedule multistep needs its epochs: --lr-milestones '30, 60, 80'")


def check_precision(precision: str, enable_gpu: str | bool) -> None:
    """Raises ConfigError for float16 on a CPU."""
    if resolve("precision", precision, PRECISIONS) == "fp16" and not wants_gpu(enable_gpu):
        raise ConfigError(
            "--precision fp16 needs --enable-gpu yes: CPUs hardly compute in float16; give bf16, "
            "which needs no scaled losses either"
        )


def check_update(optimizer: str, clip_grad: float, memory: str) -> None:
    """Raises ConfigError for a memory that makes Adam's update or applies momentum, beside settings
    that need plain gradients.
    """
    makes_update = kind_of(memory).makes_update
    if makes_update and optimizer.lower() not in ADAMS:
        raise ConfigError(
            f"--memory {memory} has workers send Adam's update in place of their gradients, and "
            f"--optimizer {optimizer} steps by gradients; give --optimizer adam or adamw, or leave "
            "--memory out"
        )
    if clip_grad and makes_update:
        raise ConfigError(
            f"--clip-grad {clip_grad:g}: with --memory {memory} workers send Adam's update, whose "
            "length is not the gradient's; give --memory residual, or leave --clip-grad out"
        )
    if clip_grad and kind_of(memory).has_momentum:
        raise ConfigError(
            f"--clip-grad {clip_grad:g}: with --memory {memory} workers send gradients with "
            f"momentum; give --memory 'dgc(clip={clip_grad:g})', which clips gradients before the "
            "momentum"
        )


def master_down(master_device: str, enable_gpu: str | bool, comm_type: str, down: str) -> str:
    """Returns the weight sync of a master on a device, in canonical form.

    With other syncs than weights, workers repeat the master's steps on CPUs. Sums on a GPU differ
    from those in their last bits, so a master on a GPU sends weights.

    Raises:
        ConfigError: the run has no master on a GPU, or such a master cannot use this sync.
    """
    device = resolve("master-device", master_device, MASTER_DEVICES)
    has_master = resolve("comm-type", comm_type, COMM_TYPES) == PARAMETER_SERVER
    down = canonical_downlink(down)
    if device == CPU:
        return down
    if not has_master or not wants_gpu(enable_gpu):
        lacks = (
            f"a master, which --comm-type {PARAMETER_SERVER} has"
            if not has_master
            else "--enable-gpu yes"
        )
        raise ConfigError(f"--master-device {device} needs {lacks}; leave it out for the CPU")
    if down == AUTO_DOWNLINK:
        return WEIGHTS
    if downlink_name(down) != WEIGHTS:
        raise ConfigError(
            f"--down {down}: workers would repeat steps on their CPUs, and their results would "
            f"differ from those of a master on a GPU; give --down {WEIGHTS}, {WEIGHTS}(bf16) or "
            f"{AUTO_DOWNLINK}, or --master-device {CPU}"
        )
    return down


def wants_gpu(enable_gpu: str | bool) -> bool:
    """True if `--enable-gpu` is yes.

    Raises:
        ConfigError: its value is neither yes nor no.
    """
    try:
        return truth(str(enable_gpu))
    except ConfigError as error:
        raise ConfigError(f"--enable-gpu: {error}; yes: CUDA, no or empty: CPU") from error
