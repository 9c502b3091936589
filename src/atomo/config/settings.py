"""The settings of a training run: a frozen dataclass, checked when it is created.

Each field is a command-line option of the same name, with `-` for `_`. The names that the published
ATOMO scripts used keep their meaning.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, final

from atomo.codecs import Codec
from atomo.codecs.by_name import ByName, parse_by_name
from atomo.config import checks, comm_rules
from atomo.config.bounds import BOUNDS
from atomo.config.checks import ANYWAY, wants_gpu
from atomo.config.comm_types import PARAMETER_SERVER
from atomo.config.resolve_codec import (
    AUTO_CODEC,
    FLAGS,
    check_auto,
    default_rate,
    final_codec,
    fitted_by_name,
    fitted_phases,
    fitted_schedule,
    override_recipe,
    required_memory,
)  # fmt: skip
from atomo.core.arguments import flag, option
from atomo.core.bounds import check
from atomo.core.names import resolve
from atomo.errors import ConfigError
from atomo.memory import canonical_memory, check_fits, kind_of
from atomo.options.compression import Compression
from atomo.options.grouping import Grouping, grouping, megabytes
from atomo.options.hierarchy import canonical_hierarchy
from atomo.options.rates import RATES
from atomo.options.recipes import RECIPES
from atomo.options.schedule import phases

__all__ = ["Settings", "wants_gpu"]

PLAIN: Final = "sgd"


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one training run."""

    n: int = option(3, "processes: 1 master and n-1 workers, or n workers (see --comm-type)")
    hostfile: str = option("", "file of hosts, the master's host first; empty: only this host")
    slurm: bool = option(
        False, "run on the hosts of the SLURM allocation; --n defaults to its tasks: yes or no"
    )
    task: str = option("images", "kind of training; if not given, the task of --dataset")
    network: str = option("LeNet", "model, e.g. LeNet, ResNet18, torchvision:NAME, timm:NAME")
    weights: str = option(
        "", "initial weights, a file on every host: .npz (ViT, Mixer) or .safetensors"
    )
    dataset: str = option(
        "Digits", "Digits, MNIST, Cifar10, Cifar100, SVHN, ImageNet, Imagenette, Folder or Noise"
    )
    data_dir: str = option("data", "folder of the data sets, on every host")
    image_size: int | None = option(
        None, "height and width of images, pixels; empty: the data set's"
    )
    batch_size: int = option(32, "samples per batch of one worker")
    batches_per_step: int = option(
        1, "batches per step: gradients are accumulated over them (gradient accumulation)"
    )
    test_batch_size: int = option(1000, "batch size of the evaluator")
    epochs: int = option(10, "number of passes over the training data")
    max_steps: int = option(1_000_000, "maximum number of steps, if --epochs do not end before")
    optimizer: str = option("sgd", "optimizer: sgd or adam")
    lr: float | None = option(
        None, "learning rate; empty: 0.02; with adam 0.001; with majority-vote codecs 0.0001"
    )
    momentum: float = option(0.9, "momentum of sgd; higher => past gradients count longer")
    nesterov: bool = option(False, "use Nesterov momentum: yes or no")
    weight_decay: float = option(0.0, "weight decay (L2 penalty)")
    decay_norms: bool = option(
        True,
        "weight decay of norm layers and biases too: yes, as in PyTorch; no, as in many papers",
    )
    clip_grad: float = option(
        0.0, "gradient clipping: maximum norm of a step's mean gradient; 0: none"
    )
    label_smoothing: float = option(0.0, "share of each label that is spread over all classes")
    ema_decay: float = option(0.0, "decay of an averaged copy of the weights (EMA); 0: none")
    precision: str = option(
        "fp32", "data type of forward and backward passes (autocast): fp32, bf16, or fp16 on GPUs"
    )
    noise_damping: bool = option(
        True, "shorten sgd's steps by the measured noise of an unbiased codec: yes or no"
    )
    lr_shrinkage: float = option(1.0, "factor on the learning rate every --lr-shrink-freq steps")
    lr_shrink_freq: int = option(50, "steps between two applications of --lr-shrinkage")
    schedule: str = option(
        "constant", "learning-rate schedule: constant, step, multistep, cosine, linear"
    )
    lr_warmup_epochs: float = option(
        0.0, "epochs in which the learning rate rises to its full value"
    )
    lr_warmup_from: float | None = option(
        None, "share of the full rate to begin at; empty: --lr with --lr-scale-by-workers, else 0.1"
    )
    lr_scale_by_workers: bool = option(
        False, "multiply --lr by the number of workers and by --batches-per-step: yes or no"
    )
    lr_step_epochs: float = option(30.0, "epochs between two decays of --schedule step")
    lr_milestones: str = option("", "epochs of the decays of --schedule multistep: '30, 60, 80'")
    lr_gamma: float = option(0.1, "factor of each decay of step and multistep; lower => faster")
    lr_end: float = option(0.0, "share of the rate that cosine and linear reach at the end")
    lr_by_epoch: bool = option(False, "update the learning rate after epochs, not steps: yes or no")
    recipe: str = option("", "published method with all its settings, e.g. dgc; other options win")
    code: str = option(
        "svd",
        "gradient codec, e.g. sgd, fp16, svd, 'svd(rank=3)'; auto: chosen per layer by measurement",
    )
    error_budget: float | None = option(
        None, "with --code auto: maximum of (squared error / squared norm) of the mean gradient"
    )
    auto_share: float = option(
        0.1,
        "maximum share of the run time that --code auto and --fusion auto spend on measurements",
    )
    code_schedule: str = option("", "codecs by epoch: 'EPOCH: CODEC; EPOCH: CODEC'; empty: --code")
    code_for: str = option(
        "", "codecs of single parameters: 'CODEC: NAME NAME*; CODEC: NAME'; others: --code"
    )
    warmup_epochs: int = option(
        0, "E epochs in which the codec's ratio falls from ratio^(1/(E+1)) to its value"
    )
    compress_ratio: float | None = option(None, "share of entries that sparsifiers send")
    svd_rank: int | None = option(None, "expected atoms per layer of svd; lower => fewer bytes")
    quantization_level: int | None = option(None, "bits per entry of the quantising codecs")
    bucket_size: int | None = option(None, "entries that share one norm in the quantising codecs")
    memory: str = option(
        "auto",
        "state that workers keep for error feedback: auto, none, residual, dgc, momentum, adam",
    )
    comm_type: str = option(
        PARAMETER_SERVER,
        "how gradients are averaged: ParameterServer (a master averages, and sends weights), or "
        "without a master: Allgather, Allreduce, PowerSGD, ACPSGD, Chunked",
    )
    hierarchical: str = option(
        "",
        "without a master: dense gradients inside a host, compressed between hosts: yes (hosts "
        "by name), no, or the number of ranks per host",
    )
    down: str = option(
        "auto",
        "sent by the master: weights[(bf16)], updates (gradients), auto (smaller), delta(CODEC)",
    )
    num_aggregate: int = option(0, "gradients that complete a step; 0: those of all workers")
    grace: float = option(
        0.0, "with --num-aggregate: wait for late gradients up to this multiple of the time so far"
    )
    step_timeout: float = option(
        0.0, "with a master: seconds after which a step uses the gradients received; 0: never"
    )
    dense_below: int = option(0, "parameters of fewer entries are sent as float32")
    dense_steps: int = option(0, "first steps, in which all gradients are sent as float32")
    fusion: str = option(
        "",
        "grouping of gradients into messages: auto (measured), mergecomp, layer, one, "
        "count:MESSAGES, bytes:MB, cuts:LIST; empty: bytes:MB of --fusion-mb",
    )
    fusion_mb: float = option(4.0, "MB of gradient per message; higher => less overlap")
    blosc_codec: str = option("lz4", "lossless compressor: none, blosclz, lz4, lz4hc, zlib or zstd")
    blosc_level: int = option(5, "level of --blosc-codec, 0..9; higher => smaller and slower")
    blosc_shuffle: str = option("byte", "shuffle filter of --blosc-codec: none, byte or bit")
    enable_gpu: str | bool = option("", "yes: CUDA, on all GPUs of each host; no or empty: CPU")
    master_device: str = option(
        "cpu",
        "with --enable-gpu: device of the master's sums and optimizer: cpu, or gpu (sends weights)",
    )
    cuda_aware_mpi: str = option(
        "auto", "on GPUs, without a master: auto (dense sums from GPU to GPU if MPI can) or no"
    )
    threads: int = option(0, "compute threads per process; 0: cores of a host / its workers")
    train_dir: str = option("", "folder of the run; empty: a new one under runs/")
    eval_freq: int = option(100, "steps between two checkpoints")
    checkpoint_every: float = option(
        0.0, "seconds after which a checkpoint is due as well; 0: never"
    )
    keep_checkpoints: int = option(0, "number of newest checkpoints to keep; 0: all")
    resume: str = option(
        "auto",
        "auto: continue the run in --train-dir; anyway: also with another codec, memory, "
        "optimizer or data; never: start anew; or the folder of a run to continue from",
    )
    dump_every: int = option(0, "steps between two dumps of worker 1's gradient to a file; 0: none")
    evaluator: str = option("local", "local: an evaluator beside the run; none: start it yourself")
    seed: int = option(1, "seed of all random numbers")
    log_interval: int = option(10, "steps between two lines of progress")
    log_format: str = option("text", "text, or atomo: lines of the published ATOMO")
    timeout: float = option(300.0, "maximum wait for another rank, seconds")
    min_workers: int = option(0, "minimum number of living workers; 0: half of them")
    spares: int = option(0, "processes beyond --n that wait, and replace processes that die")
    max_strikes: int = option(3, "with a master: refused frames in a row that drop a worker")
    max_restarts: int = option(
        3, "maximum restarts from the newest checkpoint after lost processes"
    )
    mpi_args: str = option("", "further arguments for mpirun")

    def __post_init__(self) -> None:
        check(self, BOUNDS, flag)  # each value alone; the checks below compare settings
        checks.check_hosts(self.hostfile, self.slurm)
        checks.check_folders(self.data_dir, self.resume)
        comm_rules.check_roles(self.n, self.comm_type, self.num_aggregate)
        comm_rules.check_limits(self.comm_type, self.step_timeout, self.grace, self.num_aggregate)
        comm_rules.check_deaths(
            self.n, self.comm_type, self.hierarchical, self.min_workers, self.spares
        )
        comm_rules.check_weight_sync(self.comm_type, self.down)
        comm_rules.check_hierarchy(self.comm_type, self.hierarchical)
        if self.nesterov and not (self.momentum and self.optimizer == "sgd"):
            raise ConfigError("--nesterov needs --optimizer sgd and --momentum above 0")
        if self.recipe:
            raise ConfigError("a recipe is settings: use Settings.from_recipe")
        checks.check_schedule(self.schedule, self.lr_milestones)
        _ = self.grouping
        wants_gpu(self.enable_gpu)
        Compression(self.blosc_codec, self.blosc_level, self.blosc_shuffle)

    @classmethod
    def from_recipe(cls, recipe: str = "", **settings: Any) -> "Settings":
        """Returns the settings of a recipe, with `settings` in place of the recipe's own values.

        Raises:
            ConfigError: no recipe has this name, or a setting is out of range.
        """
        if not recipe:
            return cls(**settings)
        name = resolve("recipe", recipe, RECIPES)
        return cls(**override_recipe(RECIPES[name].settings, settings))

    def resolved(self) -> "Settings":
        """Returns the same run with every name in its canonical form and every default filled in,
        except the codecs that `--code auto` chooses when the run starts.
        """
        if self.code.lower() == AUTO_CODEC:
            return self._resolved_auto()
        codec = final_codec(self.code, self.codec_flags, self.code_schedule)
        codec = comm_rules.fitted_codec(codec, self.comm_type)
        by_name = fitted_by_name(self.by_name, self.comm_type)
        planned = fitted_phases(codec, self.code_schedule, self.comm_type)
        codecs = [*(phase.codec for phase in planned), *by_name.codecs]
        memory = self._memory_for(codecs)
        self._check_codecs(codecs, memory)
        schedule = fitted_schedule(codec, self.code_schedule, self.warmup_epochs, self.comm_type)
        return replace(
            self._with_canonical_names(),
            code=str(codec),  # has the values of the flags below, which must not apply twice
            svd_rank=None,
            quantization_level=None,
            bucket_size=None,
            compress_ratio=None,
            memory=canonical_memory(memory),
            code_schedule=schedule,
            code_for=str(by_name),
            warmup_epochs=0,
            lr=default_rate(self.optimizer, codecs) if self.lr is None else self.lr,
        )

    def _resolved_auto(self) -> "Settings":
        check_auto(self.comm_type, self.code_schedule, self.code_for, self.warmup_epochs,
                   self.enable_gpu)  # fmt: skip
        memory = "none" if self.memory == "auto" else self.memory
        plain = replace(self, code=PLAIN, memory=memory).resolved()
        memory = AUTO_CODEC if self.memory == AUTO_CODEC else plain.memory
        return replace(plain, code=AUTO_CODEC, memory=memory)

    def _memory_for(self, codecs: list[Codec[Any]]) -> str:
        """Returns the memory that `--memory` names, or that `auto` chooses for these codecs."""
        if self.memory != "auto":
            return self.memory
        optimizer = PLAIN if self.clip_grad else self.optimizer  # only gradients can be clipped
        return required_memory(codecs, self.comm_type, self.momentum_of_sgd, optimizer)

    def _check_codecs(self, codecs: list[Codec[Any]], memory: str) -> None:
        for codec in codecs:
            check_fits(codec, memory)
        comm_rules.check_memory(memory, self.comm_type)
        comm_rules.check_scales(codecs, self.comm_type, self.spares)
        checks.check_update(self.optimizer, self.clip_grad, memory)
        checks.check_precision(self.precision, self.enable_gpu)

    def _with_canonical_names(self) -> "Settings":
        names: dict[str, Any] = {
            name: resolve(name.replace("_", "-"), getattr(self, name), choices)
            for name, choices in checks.CHOICES.items()
        }
        return replace(
            self,
            **names,
            hierarchical=canonical_hierarchy(self.hierarchical),
            down=checks.master_down(self.master_device, self.enable_gpu, self.comm_type, self.down),
            fusion=str(self.grouping) if self.fusion else "",
            num_aggregate=self.num_aggregate or self.workers,
            enable_gpu="yes" if wants_gpu(self.enable_gpu) else "",
        )

    @property
    def by_name(self) -> ByName:
        """Codecs of single parameters, from `--code-for`."""
        return parse_by_name(self.code_for)

    @property
    def codecs(self) -> list[Codec[Any]]:
        """All codecs that a step of the run uses, for any parameter."""
        planned = phases(self.code, self.code_schedule)
        return [*(phase.codec for phase in planned), *self.by_name.codecs]

    @property
    def codec_flags(self) -> dict[str, int | float | None]:
        """Settings of the codec from the published flags, by name; None: flag not given."""
        return {setting: getattr(self, name) for name, setting in FLAGS.items()}

    @property
    def resumes_elsewhere(self) -> bool:
        """True if the run continues from a folder that `--resume` names."""
        return self.resume not in ("auto", "never", ANYWAY)

    @property
    def resume_folder(self) -> str:
        """The folder that the run continues from, if it has a checkpoint."""
        return self.resume if self.resumes_elsewhere else self.train_dir

    @property
    def measures(self) -> bool:
        """True if ranks measure codecs or buckets before the first step."""
        return self.code.lower() == AUTO_CODEC or self.grouping.searched

    @property
    def processes(self) -> int:
        """Number of processes of the job, spares included."""
        return self.n + self.spares

    @property
    def workers(self) -> int:
        """Number of processes that compute gradients."""
        return comm_rules.trainers(self.n, self.comm_type)

    @property
    def least_workers(self) -> int:
        """Minimum number of workers of a step; all workers if the run ends with the first death."""
        return comm_rules.least_workers(self.n, self.comm_type, self.hierarchical, self.min_workers)

    @property
    def share_of_step(self) -> int:
        """Number of samples of one worker in a step."""
        return self.batch_size * self.batches_per_step

    @property
    def grouping(self) -> Grouping:
        """Grouping of gradients into messages."""
        return grouping(self.fusion) if self.fusion else megabytes(self.fusion_mb)

    @property
    def counted(self) -> int:
        """Number of workers that contribute to a step, of resolved settings.

        With error feedback all workers count, since late gradients are added to later steps;
        without it, only the `--num-aggregate` gradients that a step waits for.
        """
        waited_for = self.num_aggregate or self.workers
        if waited_for == self.workers or kind_of(self.memory).feeds_back:
            return self.workers
        return waited_for

    @property
    def momentum_of_sgd(self) -> float:
        """`--momentum` with SGD; 0 with Adam, which has moments instead."""
        return self.momentum if self.optimizer.lower() == "sgd" else 0.0

    @property
    def learning_rate(self) -> float:
        """`--lr`, or its default; for resolved settings."""
        return RATES[PLAIN] if self.lr is None else self.lr

    @property
    def peak_lr(self) -> float:
        """Learning rate after the warm-up, before the schedule lowers it."""
        factor = self.counted * self.batches_per_step if self.lr_scale_by_workers else 1
        return self.learning_rate * factor

    @property
    def warmup_from(self) -> float:
        """First learning rate of a warm-up, as a share of `peak_lr`."""
        if self.lr_warmup_from is not None:
            return self.lr_warmup_from
        return self.learning_rate / self.peak_lr if self.lr_scale_by_workers else 0.1

    @property
    def compression(self) -> Compression:
        """Settings of the lossless compressor, Blosc."""
        return Compression(self.blosc_codec, self.blosc_level, self.blosc_shuffle)
