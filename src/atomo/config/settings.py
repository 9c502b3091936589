"""The settings of a training run: its options, checked, and the values that follow from them."""

from dataclasses import dataclass, replace
from typing import Any, Final, final

from atomo.codecs import Codec
from atomo.codecs.by_name import ByName, parse_by_name
from atomo.config import checks, comm_rules, local_rules
from atomo.config.bounds import BOUNDS
from atomo.config.checks import ANYWAY, wants_gpu
from atomo.config.resolve_codec import (
    AUTO_CODEC,
    FLAGS,
    check_auto,
    default_rate,
    delays_all_entries,
    final_codec,
    fitted_by_name,
    fitted_phases,
    fitted_schedule,
    override_recipe,
    required_memory,
)  # fmt: skip
from atomo.config.run_options import RunOptions
from atomo.core.arguments import flag
from atomo.core.bounds import check
from atomo.core.names import resolve
from atomo.errors import ConfigError
from atomo.memory import (
    canonical_memory,
    check_fits,
    check_no_momentum,
    kind_of,
    memory_without_momentum,
)
from atomo.options.compression import Compression
from atomo.options.grouping import Grouping, grouping, megabytes
from atomo.options.hierarchy import canonical_hierarchy
from atomo.options.local_recipes import run_recipe
from atomo.options.local_steps import LocalOptions, read_mix, read_overlap
from atomo.options.rates import RATES
from atomo.options.schedule import phases

__all__ = ["Settings", "wants_gpu"]

PLAIN: Final = "sgd"


@final
@dataclass(frozen=True, kw_only=True)
class Settings(RunOptions):
    """Settings of one training run, checked when they are created."""

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
        local_rules.check_local_steps(self.local, self.comm_type)
        local_rules.check_round_messages(
            self.local, self.code, self.fusion, self.grouping, self.ema_decay
        )
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
        settings_of_recipe = run_recipe(recipe).settings
        return cls(**override_recipe(settings_of_recipe, settings))

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
            nesterov=self._nesterov_for(codecs, memory),
            code_schedule=schedule,
            code_for=str(by_name),
            warmup_epochs=0,
            **local_rules.resolved_rounds(self.local, self.workers, memory),
            lr=default_rate(self.optimizer, codecs) if self.lr is None else self.lr,
        )

    def _resolved_auto(self) -> "Settings":
        check_auto(self.comm_type, self.code_schedule, self.code_for, self.warmup_epochs,
                   self.enable_gpu)  # fmt: skip
        memory = "none" if self.memory == "auto" else self.memory
        plain = replace(self, code=PLAIN, memory=memory).resolved()
        memory = AUTO_CODEC if self.memory == AUTO_CODEC else plain.memory
        return replace(plain, code=AUTO_CODEC, memory=memory)  # momentum stays when codecs change

    def _memory_for(self, codecs: list[Codec[Any]]) -> str:
        """Returns the memory that `--memory` names, or that `auto` chooses for these codecs."""
        if self.memory != "auto":
            return self.memory
        # Only gradients can be clipped, and differences of weights have no momentum to correct.
        plain = self.clip_grad or self.has_local_steps
        optimizer = "adam" if self.optimizer.lower() in checks.ADAMS and not plain else PLAIN
        momentum = 0.0 if self.has_local_steps else self.momentum_of_sgd
        memory = required_memory(codecs, self.comm_type, momentum, optimizer)
        return memory_without_momentum(memory) if self.has_local_steps else memory

    def _nesterov_for(self, codecs: list[Codec[Any]], memory: str) -> bool:
        """Returns `--nesterov`, or if it was not given, True where its term cancels the delay of
        error feedback (docs/headlines.md).
        """
        if self.nesterov is not None or self.has_local_steps or not self.momentum_of_sgd:
            return bool(self.nesterov)
        return delays_all_entries(codecs, memory)

    def _check_codecs(self, codecs: list[Codec[Any]], memory: str) -> None:
        if self.has_local_steps:
            check_no_momentum(memory)
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
    def local(self) -> LocalOptions:
        """Options of local steps."""
        overlap, mix = read_overlap(self.overlap), read_mix(self.mix)
        return LocalOptions(
            self.local_steps, self.outer, self.outer_mean, self.fragments, overlap, mix,
            self.transform, self.local_seconds,
        )  # fmt: skip

    @property
    def has_local_steps(self) -> bool:
        """True if a round of the run has local steps."""
        return self.local.has_rounds

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
    def uses_nesterov(self) -> bool:
        """True if momentum is Nesterov's, of resolved settings."""
        return bool(self.nesterov)

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
