"""The job: the common state of all ranks of a run, computed from the settings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Size, Tensor, nn

from atomo.codecs import Codec
from atomo.codecs.by_name import NONE, ByName, dense_below
from atomo.codecs.dense_fallback import DENSE
from atomo.config.bounds import FLOAT
from atomo.config.checks import ANYWAY
from atomo.config.settings import Settings
from atomo.core.randomness import derive
from atomo.errors import ConfigError
from atomo.fusion import Bucket, shapes
from atomo.fusion import plan as plan_buckets
from atomo.memory import NoMemory, kind_of
from atomo.options.fragments import split_fragments
from atomo.options.grouping import Grouping
from atomo.options.local_steps import local_phases, longest_round
from atomo.options.schedule import phases
from atomo.options.weight_sync import delta_codec
from atomo.training.checkpoints.schema import kept_buffers
from atomo.training.job.compiling import compile_kernels
from atomo.training.job.events import ProbedAgain
from atomo.training.job.plan import Plan
from atomo.training.job.round_plan import Round, RoundPlan, make_round_plan
from atomo.training.job.shard import Shard, steps_per_epoch
from atomo.training.optim.learning_rate import LearningRate
from atomo.workloads import Task, Workload, make_task
from atomo.workloads.models.pretrained.weights import load_weights

__all__ = ["Job", "floating_buffers", "make_job", "make_stages", "own_codecs"]

LAYERS: Final = Grouping("layer")


@final
@dataclass(frozen=True)
class Stage:
    """The buckets of all steps from `first_step` to the next stage."""

    first_step: int
    buckets: tuple[Bucket, ...]


@final
@dataclass(frozen=True)
class Job:
    """A training run, ready to start."""

    settings: Settings
    task: Task
    workload: Workload
    model: nn.Module
    stages: tuple[Stage, ...]
    workers: int
    steps_per_epoch: int
    plan: Plan = field(default_factory=Plan)
    """The codecs and messages of `--code auto` and `--fusion auto`."""
    again: ProbedAgain | None = None
    """Result of the run's last probe, if the probe was after the first step."""

    @property
    def resume(self) -> str:
        """Start of the run: "auto" after a probe, since the run continues from its checkpoint."""
        here = self.again or self.settings.resume == ANYWAY
        return "auto" if here else self.settings.resume

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Place of each parameter; the same in every stage."""
        return self.stages[0].buckets

    def buckets_at(self, step: int) -> tuple[Bucket, ...]:
        """Returns the buckets of `step`, with the codecs of that step."""
        return [stage for stage in self.stages if stage.first_step <= step][-1].buckets

    @cached_property
    def rounds(self) -> RoundPlan:
        """The rounds of the run; without local steps a round is a step."""
        local = self.settings.local
        return make_round_plan(
            local_phases(local.steps), self.steps_per_epoch, self.last_step,
            fragments=local.fragments, overlap=local.overlap, is_late=local.is_late,
            is_local=local.is_local,
        )  # fmt: skip

    def exchanged_at(self, step: int) -> tuple[Bucket, ...]:
        """Returns the buckets of an exchange of the whole model after `step`: those of the
        parameters, and with local steps a bucket of the floating-point buffers.
        """
        return self.buckets_at(step) + self.buffer_buckets

    @cached_property
    def buffer_buckets(self) -> tuple[Bucket, ...]:
        """The bucket of the buffers that have a mean, such as batch-norm statistics; empty: the
        model has none, or no round has local steps.
        """
        buffers = floating_buffers(self.model) if self.settings.has_local_steps else {}
        if not buffers:
            return ()
        tensors = [(name, tensor.shape) for name, tensor in buffers.items()]
        number, offset = len(self.buckets), self.entries
        return tuple(
            replace(bucket, number=number + bucket.number, offset=offset + bucket.offset)
            for bucket in plan_buckets(tensors, DENSE, Grouping("one"))
        )

    def fragment_buckets(self, step: int, fragment: int | None) -> tuple[Bucket, ...]:
        """Returns the buckets of the exchange of a fragment after `step`; None: the whole model."""
        buckets = self.exchanged_at(step)
        if fragment is None:
            return buckets
        names = fragments_of(self.settings, shapes(self.model))[fragment]
        own = [bucket for bucket in buckets if bucket.slots[0].name in names]
        return (*own, *self.buffer_buckets)

    def served_buckets(self, round_: Round) -> tuple[Bucket, ...]:
        """Returns the buckets that a worker sends a master in a round, numbered from 0: those of
        gradients, or of the differences of parameters and buffers.
        """
        if not round_.is_local:
            return self.buckets_at(round_.last)
        buckets = self.fragment_buckets(round_.last, round_.fragment)
        return tuple(replace(bucket, number=number) for number, bucket in enumerate(buckets))

    @property
    def served_entries(self) -> int:
        """Entries that a master keeps: those of one gradient, and of buffers that have a mean."""
        return self.entries + sum(bucket.size for bucket in self.buffer_buckets)

    @property
    def down_buckets(self) -> tuple[Bucket, ...]:
        """Buckets with the codec for differences of weights sent to workers, if any; buffers travel
        dense.
        """
        codec = delta_codec(self.settings.down)
        if codec is None:
            return ()
        own = plan_fragments(self.settings, shapes(self.model), codec, self.settings.grouping)
        buckets = (*own, *self.buffer_buckets)
        return tuple(replace(bucket, number=number) for number, bucket in enumerate(buckets))

    def damps_at(self, step: int) -> bool:
        """Returns True if noise damping reduces the learning rate of `step`.

        Adam already divides by the size of its gradients. The residual of a memory is not noise.
        """
        s = self.settings
        plain = s.noise_damping and s.optimizer == "sgd" and s.memory == NoMemory.id
        # Differences of weights add up to the same place however noisy they are.
        if s.has_local_steps and self.rounds.at(step).is_local:
            return False
        return plain and any(bucket.amplifies_noise for bucket in self.buckets_at(step))

    @property
    def share(self) -> float:
        """The weight of a gradient in a step.

        If late gradients count in a later step, the weight is that in a step of all P workers: all
        gradients count in the end, and a mean over the first K would weigh each P / K times.
        """
        return 1 / self.settings.counted

    @property
    def late_share(self) -> float:
        """Share K / P of a late gradient that counts later, where steps wait for K of P workers.

        With this share, the residual of a worker that is always late stays below P / (P - K)
        gradients. Otherwise it would have all gradients so far, and send them in a single step.
        """
        return self.late_share_of(self.workers)

    def late_share_of(self, workers: int) -> float:
        """Returns the late share for a number of remaining workers."""
        return min(self.settings.num_aggregate, workers) / workers

    @property
    def late_counts(self) -> bool:
        """True if a late gradient counts in a later step."""
        return kind_of(self.settings.memory).feeds_back

    @property
    def last_step(self) -> int:
        """The last step: by epochs or by steps, whichever ends first."""
        return min(self.settings.epochs * self.steps_per_epoch, self.settings.max_steps)

    @property
    def rate(self) -> LearningRate:
        """The learning rate of each step."""
        return LearningRate(self.settings, self.steps_per_epoch, self.last_step)

    @cached_property
    def matrices(self) -> Mapping[str, int]:
        """Parameters that Muon orthogonalises, with their numbers of rows: matrices and filters,
        except embeddings and the last layer.
        """
        tables = {
            id(module.weight)
            for module in self.model.modules()
            if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        }
        large = {n: p for n, p in self.model.named_parameters() if p.dim() > 1}
        inner = [*large.items()][:-1]
        return {name: len(p) for name, p in inner if id(p) not in tables}

    @property
    def timeout_s(self) -> float:
        """Maximum wait for the gradient of a worker: with a master, a worker answers after all
        steps of a round.
        """
        s = self.settings
        return max(s.timeout * longest_round(s.local_steps), s.timeout + 2 * s.local_seconds)

    @property
    def images_of_step(self) -> int:
        """Samples of a step. The workers divide them, also after a worker is lost."""
        return self.workers * self.settings.share_of_step

    @property
    def entries(self) -> int:
        """Entries of one gradient."""
        return sum(bucket.size for bucket in self.buckets)

    def shard(self, worker: int) -> Shard:
        """Returns the samples of worker 1..workers."""
        s = self.settings
        return Shard(len(self.workload.train), self.workers, worker - 1, s.share_of_step, s.seed)


def make_job(settings: Settings, ranks: int) -> Job:
    """Loads the data set and builds the model with its initial weights, alike on every rank.

    Raises:
        ConfigError: the number of ranks contradicts the settings, or a setting does not fit.
        DataError: the data set or the file of weights is missing or damaged.
    """
    if ranks != settings.processes:
        spares = f" and --spares {settings.spares}" if settings.spares else ""
        raise ConfigError(f"--n {settings.n}{spares}, but this job has {ranks} processes")
    task = make_task(settings.task)
    workload = task.open(settings.dataset, Path(settings.data_dir), settings.image_size)
    if settings.label_smoothing:
        smoothed = workload.objective.smoothed(settings.label_smoothing)
        workload = replace(workload, objective=smoothed)
    workers = settings.workers
    steps = steps_per_epoch(len(workload.train), workers, settings.share_of_step)
    torch.manual_seed(derive(settings.seed, "weights"))
    model = workload.build(settings.network)
    if settings.weights:
        load_weights(model, Path(settings.weights))
    compile_kernels(settings.codecs)
    stages = make_stages(settings, model, steps)
    job = Job(settings, task, workload, model, stages, workers, steps)
    check_rate(settings, job.last_step)
    return job


def check_rate(settings: Settings, last_step: int) -> None:
    """Raises ConfigError for a learning rate that grows beyond float32 before the run ends."""
    s, times = settings, (last_step - 1) // settings.lr_shrink_freq
    if math.log10(s.peak_lr) + times * math.log10(s.lr_shrinkage) > math.log10(FLOAT):
        raise ConfigError(
            f"--lr {s.peak_lr:g} times --lr-shrinkage {s.lr_shrinkage:g} every {s.lr_shrink_freq} "
            f"steps is beyond float32 ({FLOAT:g}) by step {last_step}, the last one; shrink by at "
            "most 1"
        )


def make_stages(settings: Settings, model: nn.Module, steps: int) -> tuple[Stage, ...]:
    """Builds the stages of a run with `steps` steps an epoch.

    If a plan will choose the messages, each parameter is a message until then.

    Raises:
        ConfigError: a codec is for a parameter that the model does not have.
    """
    tensors, by_name = shapes(model), own_codecs(settings, shapes(model))
    by_name.check_names(name for name, _ in tensors)
    grouping = LAYERS if settings.grouping.searched else settings.grouping
    first = 1 + settings.dense_steps
    stages = [
        Stage(
            max(first, 1 + math.ceil(phase.epoch * steps)),
            plan_fragments(settings, tensors, phase.codec, grouping, by_name),
        )
        for phase in phases(settings.code, settings.code_schedule)
    ]
    if first > 1:
        stages.insert(0, Stage(1, plan_fragments(settings, tensors, DENSE, grouping)))
    return tuple(stages)


def plan_fragments(
    settings: Settings,
    tensors: Sequence[tuple[str, Size]],
    codec: Codec[Any],
    grouping: Grouping,
    by_name: ByName = NONE,
) -> tuple[Bucket, ...]:
    """Divides parameters into buckets, none of which has parameters of two fragments."""
    sizes, buckets = dict(tensors), list[Bucket]()
    for names in reversed(fragments_of(settings, tensors)):
        own = plan_buckets([(name, sizes[name]) for name in names], codec, grouping, by_name)
        number, offset = len(buckets), buckets[-1].offset + buckets[-1].size if buckets else 0
        buckets += [
            replace(bucket, number=number + bucket.number, offset=offset + bucket.offset)
            for bucket in own
        ]
    return tuple(buckets)


def fragments_of(
    settings: Settings, tensors: Sequence[tuple[str, Size]]
) -> Sequence[Sequence[str]]:
    """Returns the names of the parameters in each fragment.

    Raises:
        ConfigError: the model has fewer parameters than fragments.
    """
    count = settings.fragments if settings.has_local_steps else 1
    return split_fragments({name: shape.numel() for name, shape in tensors}, count)


def floating_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Returns the buffers that have a mean, by name: those of floating-point numbers."""
    return {
        name: buffer
        for name, buffer in kept_buffers(model).items()
        if buffer.is_floating_point() and buffer.numel()
    }


def own_codecs(settings: Settings, tensors: Sequence[tuple[str, Size]]) -> ByName:
    """Returns the codecs of single parameters; small parameters always travel dense."""
    return dense_below(tensors, settings.dense_below, settings.by_name)
