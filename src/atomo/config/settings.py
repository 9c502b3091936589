"""The settings of a training run: one frozen value, checked when it is made.

Each field is a command-line option of the same name, with `-` for `_`. The names that the published
ATOMO scripts used keep their meaning.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, final

from atomo.codecs import Codec
from atomo.codecs.by_name import ByName, parse_by_name
from atomo.config.bounds import BOUNDS
from atomo.config.checks import (
    CUDA_AWARE_MPI,
    MASTER_DEVICES,
    PRECISIONS,
    check_folders,
    check_hosts,
    check_precision,
    check_schedule,
    check_update,
    master_down,
    wants_gpu,
)
from atomo.config.comm_rules import (
    check_deaths,
    check_hierarchy,
    check_limits,
    check_memory,
    check_roles,
    check_scales,
    check_weight_sync,
    fitted_codec,
    least_workers,
    trainers,
)
from atomo.config.comm_types import COMM_TYPES, PARAMETER_SERVER
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
)
from atomo.core.arguments import flag, option
from atomo.core.bounds import check
from atomo.core.names import resolve
from atomo.errors import ConfigError
from atomo.memory import canonical_memory, check_fits, kind_of
from atomo.options.compression import Compression
from atomo.options.grouping import Grouping, grouping, megabytes
from atomo.options.hierarchy import canonical_hierarchy
from atomo.options.rates import RATES, SCHEDULES
from atomo.options.recipes import RECIPES
from atomo.options.schedule import phases

__all__ = ["Settings", "wants_gpu"]

PLAIN: Final = "sgd"
LOG_FORMATS: Final = ("text", "atomo")
EVALUATORS: Final = ("local", "none")
ANYWAY: Final = "anyway"
"""`--resume` that continues in the folder of the run, with other settings than before."""


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """One training run."""

    n: int = option(3, "processes: 1 master and n-1 workers, or n workers (see --comm-type)")
    hostfile: str = option("", "file of hosts, the master's first; empty: this host alone")
    slurm: bool = option(False, "the hosts are those of the allocation of SLURM, and --n its tasks")
    task: str = option("images", "what is trained; without it, what the data set is for")
    network: str = option("LeNet", "the model, e.g. LeNet, ResNet18, torchvision:NAME, timm:NAME")
    weights: str = option(
        "", "file of weights to begin with, on every host: .npz (ViT, Mixer) or .safetensors"
    )
    dataset: str = option(
        "Digits",
        "Digits, MNIST, Cifar10, Cifar100, SVHN, ImageNet, Imagenette, Folder or Noise",
    )
    data_dir: str = option("data", "where the data sets lie, on every host")
    image_size: int | None = option(None, "side of photographs, pixels")
    batch_size: int = option(32, "images per worker and step")
    batches_per_step: int = option(1, "batches whose gradients add up to one that is exchanged")
    test_batch_size: int = option(1000, "images per forward pass of the evaluator")
    epochs: int = option(10, "passes over the training images")
    max_steps: int = option(1_000_000, "steps after which the run ends, if it has not before")
    optimizer: str = option("sgd", "sgd or adam, on the master")
    lr: float | None = option(
        None, "learning rate; empty: 0.02, with adam 0.001, with codecs that vote by signs 0.0001"
    )
    momentum: float = option(0.9, "momentum of sgd; higher => longer memory of past gradients")
    nesterov: bool = option(False, "Nesterov momentum: yes or no")
    weight_decay: float = option(0.0, "L2 penalty on the weights")
    decay_norms: bool = option(
        True, "weight decay of norms and biases as well: yes, as PyTorch's; no, as often published"
    )
    clip_grad: float = option(0.0, "norm to which a step's mean gradient is cut; 0: never")
    label_smoothing: float = option(0.0, "share of each label that is spread over all classes")
    ema_decay: float = option(
        0.0, "of a moving average of the weights, kept and evaluated beside them; 0: none"
    )
    precision: str = option(
        "fp32", "of the passes, where that is safe: fp32, bf16, or fp16 on GPUs"
    )
    noise_damping: bool = option(
        True, "shorten steps of sgd by the measured noise of an unbiased codec: yes or no"
    )
    lr_shrinkage: float = option(1.0, "factor on the learning rate every lr-shrink-freq steps")
    lr_shrink_freq: int = option(50, "steps between two shrinkages of the learning rate")
    schedule: str = option(
        "constant", "of the learning rate: constant, step, multistep, cosine or linear"
    )
    lr_warmup_epochs: float = option(0.0, "epochs in which the learning rate rises to its value")
    lr_warmup_from: float | None = option(
        None, "share of it to begin at; empty: --lr itself with --lr-scale-by-workers, else 0.1"
    )
    lr_scale_by_workers: bool = option(
        False, "multiply --lr by workers and --batches-per-step: yes or no"
    )
    lr_step_epochs: float = option(30.0, "epochs between two falls of --schedule step")
    lr_milestones: str = option("", "epochs of the falls of --schedule multistep: '30, 60, 80'")
    lr_gamma: float = option(0.1, "what a fall of step or multistep leaves; lower => falls deeper")
    lr_end: float = option(0.0, "share of the rate at which cosine and linear end, after the run")
    lr_by_epoch: bool = option(False, "schedules move after epochs, not after steps: yes or no")
    recipe: str = option("", "a method with all its published settings, e.g. dgc; flags go first")
    code: str = option(
        "svd", "codec of the gradients, e.g. sgd, fp16, svd, 'svd(rank=3)'; auto: measured, a layer"
    )
    error_budget: float | None = option(
        None, "what --code auto may lose: squared error of the mean gradient over its square"
    )
    auto_share: float = option(
        0.1, "of the expected time of a run, that --code auto and --fusion auto may measure for"
    )
    code_schedule: str = option("", "codecs by epoch: 'EPOCH: CODEC; EPOCH: CODEC'; empty: --code")
    code_for: str = option(
        "", "codecs of single parameters: 'CODEC: NAME NAME*; CODEC: NAME'; the rest: --code"
    )
    warmup_epochs: int = option(0, "E epochs whose ratio falls to its value from ratio^(1/(E+1))")
    compress_ratio: float | None = option(None, "share of the entries that sparsifiers send")
    svd_rank: int | None = option(None, "expected atoms per layer of svd; lower => fewer bytes")
    quantization_level: int | None = option(None, "bits per entry of the quantising codecs")
    bucket_size: int | None = option(None, "entries that share a norm in the quantising codecs")
    memory: str = option("auto", "what workers keep: auto, none, residual, dgc, momentum, adam")
    comm_type: str = option(
        PARAMETER_SERVER,
        "ParameterServer: a master averages, and sends weights; without a master: "
        "Allgather, Allreduce, PowerSGD, ACPSGD, Chunked",
    )
    hierarchical: str = option(
        "",
        "without a master: gradients dense inside a host, compressed between hosts: yes (hosts by "
        "name), no, or how many ranks count as one host",
    )
    down: str = option(
        "auto",
        "what comes down: weights[(bf16)], updates (gradients), auto (the fewer), delta(CODEC)",
    )
    num_aggregate: int = option(0, "gradients that close a step; 0: those of all workers")
    grace: float = option(
        0.0,
        "with --num-aggregate: wait for late gradients this many times as long as the first took",
    )
    step_timeout: float = option(
        0.0,
        "with a master: seconds after which a step takes the gradients that are there; 0: never",
    )
    dense_below: int = option(
        0, "entries below which a parameter travels as float32, whatever the codec"
    )
    dense_steps: int = option(0, "first steps in which all travels as float32")
    fusion: str = option(
        "",
        "what shares a message: auto (measured), mergecomp, layer, one, count:MESSAGES, bytes:MB, "
        "cuts:LIST; empty: bytes of --fusion-mb",
    )
    fusion_mb: float = option(
        4.0, "gradient per message, MB; higher => fewer messages, less overlap"
    )
    blosc_codec: str = option("lz4", "none, blosclz, lz4, lz4hc, zlib or zstd")
    blosc_level: int = option(5, "0..9; higher => smaller and slower")
    blosc_shuffle: str = option("byte", "none, byte or bit")
    enable_gpu: str | bool = option("", "yes: CUDA, over the GPUs of each host; no or empty: CPU")
    master_device: str = option(
        "cpu",
        "with a master and --enable-gpu: where it adds up and steps: cpu, or gpu, which sends "
        "weights down",
    )
    cuda_aware_mpi: str = option(
        "auto",
        "on GPUs without a master: auto (dense sums go from GPU to GPU where MPI takes CUDA "
        "memory) or no",
    )
    threads: int = option(0, "compute threads per process; 0: the cores of a host over its workers")
    train_dir: str = option("", "folder of the run; empty: a new one under runs/")
    eval_freq: int = option(100, "steps between two checkpoints")
    checkpoint_every: float = option(
        0.0, "seconds after which a checkpoint is due beside those of --eval-freq; 0: never"
    )
    keep_checkpoints: int = option(0, "how many to keep; 0: all")
    resume: str = option(
        "auto",
        "auto: continue the run in --train-dir; anyway: also with another codec, memory, "
        "optimizer or data; never: start anew; or the folder of a run to continue from",
    )
    dump_every: int = option(0, "steps between two dumps of worker 1's gradient; 0: none")
    evaluator: str = option("local", "local: an evaluator beside the run; none: start it yourself")
    seed: int = option(1, "of everything random")
    log_interval: int = option(10, "steps between two lines of progress")
    log_format: str = option("text", "text, or atomo: lines as the published ATOMO printed them")
    timeout: float = option(300.0, "longest wait for another rank, seconds")
    min_workers: int = option(
        0, "how many workers must be left for the run to go on; 0: half of them"
    )
    spares: int = option(0, "processes beyond --n that wait, and take the places of those that die")
    max_strikes: int = option(
        3, "with a master: frames of a worker in a row that are refused before it is dropped"
    )
    max_restarts: int = option(
        3, "how often a job that lost processes is started again from its newest checkpoint"
    )
    mpi_args: str = option("", "further arguments for mpirun")

    def __post_init__(self) -> None:
        check(self, BOUNDS, flag)  # each alone; below, what contradicts another
        check_hosts(self.hostfile, self.slurm)
        check_folders(self.data_dir, self.resume)
        check_roles(self.n, self.comm_type, self.num_aggregate)
        check_limits(self.comm_type, self.step_timeout, self.grace, self.num_aggregate)
        check_deaths(self.n, self.comm_type, self.hierarchical, self.min_workers, self.spares)
        check_weight_sync(self.comm_type, self.down)
        check_hierarchy(self.comm_type, self.hierarchical)
        if self.nesterov and not (self.momentum and self.optimizer == "sgd"):
            raise ConfigError("--nesterov needs --optimizer sgd and --momentum above 0")
        if self.recipe:
            raise ConfigError("a recipe is settings: use Settings.from_recipe")
        check_schedule(self.schedule, self.lr_milestones)
        _ = self.grouping
        wants_gpu(self.enable_gpu)
        Compression(self.blosc_codec, self.blosc_level, self.blosc_shuffle)

    @classmethod
    def from_recipe(cls, recipe: str = "", **given: Any) -> "Settings":
        """Returns the settings of a recipe, but for those that are given.

        Raises:
            ConfigError: no recipe has this name, or a setting is out of range.
        """
        if not recipe:
            return cls(**given)
        return cls(**override_recipe(RECIPES[resolve("recipe", recipe, RECIPES)].settings, given))

    def resolved(self) -> "Settings":
        """Returns the same run with every name in its canonical form and nothing left to defaults,
        but for what `--code auto` finds when the run starts.
        """
        if self.code.lower() == AUTO_CODEC:
            check_auto(self.comm_type, self.code_schedule, self.code_for, self.warmup_epochs,
                       self.enable_gpu)  # fmt: skip
            memory = "none" if self.memory == "auto" else self.memory
            plain = replace(self, code=PLAIN, memory=memory).resolved()
            return replace(
                plain,
                code=AUTO_CODEC,
                memory=AUTO_CODEC if self.memory == AUTO_CODEC else plain.memory,
            )
        named = final_codec(self.code, self.codec_flags, self.code_schedule)
        codec = fitted_codec(named, self.comm_type)
        planned = fitted_phases(codec, self.code_schedule, self.comm_type)
        by_name = fitted_by_name(self.by_name, self.comm_type)
        codecs = [*(phase.codec for phase in planned), *by_name.codecs]
        memory = self.memory
        if memory == "auto":
            adaptive = PLAIN if self.clip_grad else self.optimizer  # gradients are what is clipped
            memory = required_memory(codecs, self.comm_type, self.momentum_of_sgd, adaptive)
        for one in codecs:
            check_fits(one, memory)
        check_memory(memory, self.comm_type)
        check_scales(codecs, self.comm_type, self.spares)
        check_update(self.optimizer, self.clip_grad, memory)
        check_precision(self.precision, self.enable_gpu)
        schedule = fitted_schedule(codec, self.code_schedule, self.warmup_epochs, self.comm_type)
        return replace(
            self,
            code=str(codec),  # says what the flags below said, so that they are not applied twice
            svd_rank=None,
            quantization_level=None,
            bucket_size=None,
            compress_ratio=None,
            memory=canonical_memory(memory),
            code_schedule=schedule,
            code_for=str(by_name),
            warmup_epochs=0,
            optimizer=resolve("optimizer", self.optimizer, RATES),
            lr=default_rate(self.optimizer, codecs) if self.lr is None else self.lr,
            log_format=resolve("log-format", self.log_format, LOG_FORMATS),
            precision=resolve("precision", self.precision, PRECISIONS),
            schedule=resolve("schedule", self.schedule, SCHEDULES),
            comm_type=resolve("comm-type", self.comm_type, COMM_TYPES),
            hierarchical=canonical_hierarchy(self.hierarchical),
            down=master_down(self.master_device, self.enable_gpu, self.comm_type, self.down),
            cuda_aware_mpi=resolve("cuda-aware-mpi", self.cuda_aware_mpi, CUDA_AWARE_MPI),
            master_device=resolve("master-device", self.master_device, MASTER_DEVICES),
            fusion=str(self.grouping) if self.fusion else "",
            evaluator=resolve("evaluator", self.evaluator, EVALUATORS),
            num_aggregate=self.num_aggregate or self.workers,
            enable_gpu="yes" if wants_gpu(self.enable_gpu) else "",
        )

    @property
    def by_name(self) -> ByName:
        """Codecs of single parameters, from `--code-for`."""
        return parse_by_name(self.code_for)

    @property
    def codecs(self) -> list[Codec[Any]]:
        """All that serve at any time, for any parameter."""
        planned = phases(self.code, self.code_schedule)
        return [*(phase.codec for phase in planned), *self.by_name.codecs]

    @property
    def codec_flags(self) -> dict[str, int | float | None]:
        """Settings of the codec that the published flags give, by their names; None: not given."""
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
        """True if ranks find out before the first step what serves."""
        return self.code.lower() == AUTO_CODEC or self.grouping.searched

    @property
    def processes(self) -> int:
        """Number of processes of the job, spares included."""
        return self.n + self.spares

    @property
    def workers(self) -> int:
        """Number of processes that compute gradients."""
        return trainers(self.n, self.comm_type)

    @property
    def least_workers(self) -> int:
        """Number of workers that the next step needs; all of them if a run cannot
        outlive a death.
        """
        return least_workers(self.n, self.comm_type, self.hierarchical, self.min_workers)

    @property
    def share_of_step(self) -> int:
        """Images of one worker at a step."""
        return self.batch_size * self.batches_per_step

    @property
    def grouping(self) -> Grouping:
        """Grouping of gradients into messages."""
        return grouping(self.fusion) if self.fusion else megabytes(self.fusion_mb)

    @property
    def counted(self) -> int:
        """Workers whose gradients a step stands for, of resolved settings.

        All where what is late comes back, for then it counts in the end; else those that are waited
        for.
        """
        waited_for = self.num_aggregate or self.workers
        if waited_for == self.workers or kind_of(self.memory).feeds_back:
            return self.workers
        return waited_for

    @property
    def momentum_of_sgd(self) -> float:
        """`--momentum` with SGD; 0 with Adam, which has its own."""
        return self.momentum if self.optimizer.lower() == "sgd" else 0.0

    @property
    def learning_rate(self) -> float:
        """`--lr`, of resolved settings."""
        return RATES[PLAIN] if self.lr is None else self.lr

    @property
    def peak_lr(self) -> float:
        """The learning rate before any schedule lowers it."""
        times = self.counted * self.batches_per_step if self.lr_scale_by_workers else 1
        return self.learning_rate * times

    @property
    def warmup_from(self) -> float:
        """The share of the learning rate at which a warm-up begins."""
        if self.lr_warmup_from is not None:
            return self.lr_warmup_from
        return self.learning_rate / self.peak_lr if self.lr_scale_by_workers else 0.1

    @property
    def compression(self) -> Compression:
        """Blosc's settings."""
        return Compression(self.blosc_codec, self.blosc_level, self.blosc_shuffle)
