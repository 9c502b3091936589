"""The configuration of a hook, and the exchange that it describes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

from torch import Tensor

from atomo.codecs import Codec, Law
from atomo.codecs.dense_fallback import DENSE
from atomo.config.resolve_codec import required_memory
from atomo.errors import ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.collectives.hosts import find_hosts
from atomo.exchange.collectives.intra_host_group import split_hosts
from atomo.exchange.compressor import Compressor
from atomo.exchange.reductions.reduce_scatter import ReduceScatter
from atomo.exchange.reductions.senders import MeanOverSenders
from atomo.hooks.adapter.agreement import check_alike
from atomo.hooks.adapter.averager import Averager
from atomo.hooks.adapter.chunks import NEVER, Codecs, DensePolicy
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.code_spec import CodeSpec, ReductionType, parse_code, reduction_of
from atomo.hooks.optimizers.noise_meter import NoiseMeter
from atomo.hooks.optimizers.weight_decay import NO_DECAY, Decay
from atomo.hooks.states.bucket_layout import BucketLayout
from atomo.hooks.states.memory_owner import owner_of
from atomo.hooks.states.own_memory import check_fresh, take
from atomo.memory import (
    Memory,
    NoMemory,
    canonical_memory,
    check_fits,
    default_memory,
    kind_of,
    make_memory,
)
from atomo.options.hierarchy import FLAT
from atomo.options.schedule import Phase, step_phases
from atomo.wire import Compression

__all__ = ["HookConfig", "make_exchange"]

SENDERS: Final = "senders"
GATHERS: Final = "Allgather"  # hooks have the memories of this communicator


@final
@dataclass(frozen=True)
class HookConfig:
    """Configuration of the average of gradients, the same on all ranks."""

    code: str | Codec[Any]
    memory: str | Memory = "auto"
    momentum: float = 0.0
    """The momentum that the memory applies in place of the optimizer."""
    nesterov: bool = False
    seed: int = 0
    compression: Compression | None = None
    skips: bool = False
    dense: DensePolicy = NEVER
    hierarchical: str = FLAT
    """The ranks that count as one host, as `canonical_hierarchy` spells them."""
    schedule: str = ""
    """The codecs that replace `code`, each with the step from which it encodes."""
    bucket_mb: float = 0.0
    """The size of a bucket, in MB of gradient; 0: the caller has buckets of its own."""
    plain_step: bool = False
    """True if the optimizer only subtracts the average times the learning rate."""
    recipe: str = ""
    """The recipe that defines the code, the memory and the schedule; empty: none."""
    noise_damping: bool | None = None
    """True if the noise of the codec scales the learning rate; None: not decided yet."""
    bucket_cap_mb: str = ""
    """The sizes of DDP's buckets in MiB, as text; empty: the caller is not DDP."""
    local_steps: str = ""
    """The rounds and the outer optimizer, as text; empty: each step is averaged."""
    mean: str = "workers"
    """The ranks over which an entry is averaged: all "workers", or its "senders"."""
    reduce_scatter: bool = False
    """True if each rank gets the average of its own pieces alone."""

    def __post_init__(self) -> None:
        _ = self.spec  # an unknown code is an error here, not at the first use

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The codecs of the schedule, with the step at which each begins."""
        return step_phases(self.schedule)

    @property
    def codecs(self) -> list[Codec[Any]]:
        """All codecs that encode at some step."""
        return [self.codec, *(phase.codec for phase in self.phases)]

    @cached_property
    def spec(self) -> CodeSpec:
        """The codec and the reduction of the code."""
        return parse_code(self.code)

    def is_noisy(self, step: int) -> bool:
        """True if the codec of a step is unbiased and makes gradients longer."""
        phases = [phase.codec for phase in self.phases if phase.epoch <= step]
        return not self.dense.covers(step) and [self.codec, *phases][-1].amplifies_noise

    @property
    def low_rank(self) -> bool:
        """True if ranks sum low-rank factors."""
        return self.spec.named is not None and self.spec.named.has_state

    @property
    def codec(self) -> Codec[Any]:
        """The codec."""
        return self.spec.codec

    @property
    def memory_spec(self) -> str:
        """The specification of the memory."""
        if isinstance(self.memory, Memory):
            return self.memory.spec
        if self.memory != "auto":
            return canonical_memory(self.memory)
        named = self.spec.named
        own = None if named is None else named.default_memory(self.momentum)
        if self.phases:
            return canonical_memory(own or required_memory(self.codecs, GATHERS, self.momentum))
        return canonical_memory(own or default_memory(self.codec, self.momentum))

    @property
    def memory_kind(self) -> type[Memory]:
        """The class of the memory."""
        return kind_of(self.memory_spec)

    @property
    def delays(self) -> bool:
        """True if error feedback delays values, which the optimizer's momentum then repeats."""
        drops = any(not c.near_lossless and Law.LOSSLESS not in c.laws for c in self.codecs)
        return not self.low_rank and self.memory_kind.feeds_back and drops

    @property
    def delays_factors(self) -> bool:
        """True if error feedback delays what low-rank factors miss, and the optimizer's momentum
        follows.
        """
        return self.low_rank and self.memory_kind.feeds_back and not self.has_momentum

    @property
    def has_momentum(self) -> bool:
        """True if the memory applies momentum, so that the optimizer must not."""
        kind = self.memory_kind
        return bool(self.momentum) if kind.takes_momentum else kind.has_momentum

    @property
    def undamped_by(self) -> str:
        """The reason why the codec or the memory has no noise to damp; empty: it has noise."""
        if self.low_rank or not any(codec.amplifies_noise for codec in self.codecs):
            return f"{self.spec} is not unbiased, and makes no gradient longer; leave it out"
        if self.memory_kind is not NoMemory:
            return (
                f"memory {self.memory_spec} sends later what the codec leaves out, which is no "
                "noise; give memory='none', or leave it out"
            )
        return ""

    def check(self) -> None:
        """Raises ConfigError for options that contradict each other; every hook calls this."""
        self._check_schedule()
        if self.mean == SENDERS and self.spec.named:
            raise ConfigError(f"outer_mean={SENDERS} goes with codecs, not with {self.spec}")
        if self.reduce_scatter:
            self._check_reduce_scatter()
        check_fresh(self.memory)
        for codec in self.codecs:
            check_fits(codec, self.memory_spec)
        if self.memory_kind.makes_update and not self.plain_step:
            raise ConfigError(
                f"memory {self.memory_spec} sends Adam's update in place of gradients, and here "
                "the optimizer would use the update as a gradient: use atomo.wrap_optimizer with "
                "torch.optim.AdamW or Adam, or give another memory"
            )
        if self.noise_damping and self.undamped_by:
            raise ConfigError(f"noise_damping=True: {self.undamped_by}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov=True needs momentum above 0")
        if self.momentum and not self.memory_kind.takes_momentum:
            raise ConfigError(
                f"momentum={self.momentum:g}: memory {self.memory_spec} with {self.spec} applies "
                f"none of it: {self._place_of_momentum}"
            )

    def _check_schedule(self) -> None:
        if self.phases and self.spec.named:
            raise ConfigError(f"code_schedule goes with codecs, not with {self.spec}")
        if self.phases and not self.phases[0].epoch:
            raise ConfigError(
                f"code_schedule begins at step 0, so that {self.spec} never encodes: begin it "
                f"later, or give code='{self.phases[0].codec}' and the rest as the schedule"
            )

    def _check_reduce_scatter(self) -> None:
        if self.spec.named:
            raise ConfigError(f"reduce_scatter=True goes with codecs, not with {self.spec}")
        for codec in self.codecs:
            ReduceScatter.adapt_codec(codec)

    @property
    def _place_of_momentum(self) -> str:
        """The option that applies the momentum, which this memory does not apply."""
        if self.memory_kind.has_momentum:
            return f"give memory='{self.memory_kind.id}(beta={self.momentum:g})'"
        if self.delays and self.codec.shared_seed:
            return "give momentum=0, since momentum repeats the values that error feedback delays"
        if self.delays:
            return "give memory='dgc', which applies momentum before the codec"
        return f"give momentum to the optimizer, as in SGD(..., momentum={self.momentum:g})"

    @property
    def about(self) -> str:
        """The codec, the memory and the momentum in words."""
        momentum = f"momentum {self.momentum}{' of Nesterov' if self.nesterov else ''}"
        applied = f" with {momentum}" if self.momentum else ""
        return f"{self._encoders}, memory {self.memory_spec}{applied}"

    @property
    def _encoders(self) -> str:
        """The codecs in words."""
        later = "".join(f"; from step {phase.epoch:g} {phase.codec}" for phase in self.phases)
        return f"{self.spec}{later}"

    @property
    def settings(self) -> dict[str, str]:
        """The settings that must be equal on all ranks, by the names of options."""
        return {
            "code": str(self.spec),
            "code_schedule": "; ".join(f"{phase.epoch:g}: {phase.codec}" for phase in self.phases)
            or "none",
            "memory": self.memory_spec,
            "momentum": str(self.momentum),
            "nesterov": str(self.nesterov),
            "seed": str(self.seed),
            "scaler": "enabled" if self.skips else "none",
            "dense_below": str(self.dense.dense_below),
            "dense_steps": str(self.dense.dense_steps),
            "hierarchical": self.hierarchical or "no",
            "bucket_mb": f"{self.bucket_mb:g}",
            "bucket_cap_mb": self.bucket_cap_mb or "none",
            "noise_damping": str(bool(self.noise_damping)),
            "local_steps": self.local_steps or "none",
            "outer_mean": self.mean,
            "reduce_scatter": str(self.reduce_scatter),
        }


def make_exchange(
    config: HookConfig,
    collective: Collective,
    parameters: Mapping[str, Tensor],
    layout: BucketLayout | None = None,
    decay: Decay = NO_DECAY,
) -> Exchange:
    """Creates an exchange of the gradients of these parameters. All ranks pass equal arguments.

    Args:
        config: how gradients are averaged.
        collective: the ranks.
        parameters: the parameters by name.
        layout: the buckets of the first steps after a resume; None: the buckets of the caller.
        decay: the weight decay, which is added to gradients before the memory.

    Raises:
        ConfigError: a name is unknown, the memory does not suit the codec, there is no parameter or
            one that is not floating-point, ranks pass different arguments, or all ranks are on one
            host.
    """
    if not parameters:
        raise ConfigError("the model has no parameters that need a gradient")
    for name, parameter in parameters.items():
        if not parameter.is_floating_point():
            raise ConfigError(f"parameter {name} is {parameter.dtype}: it must be real")
    config.check()
    check_alike(config.settings, parameters, collective)
    hosts = find_hosts(config.hierarchical, collective)
    meter = NoiseMeter(collective, config.is_noisy) if config.noise_damping else None
    owner = owner_of(hosts, collective.rank)
    if hosts.flat:
        averager, inside = make_averager(config, collective, parameters, decay), None
    else:
        inside, between = split_hosts(hosts, collective)
        averager = make_averager(config, between, parameters, decay)
    return Exchange(averager, parameters, owner, inside, layout, config.about, meter)


def make_averager(
    config: HookConfig, collective: Collective, parameters: Mapping[str, Tensor], decay: Decay
) -> Averager:
    """Creates the averager over a collective."""
    memory = memory_of(config, collective.size)
    compression = config.compression or Compression()
    compressor = Compressor(memory, compression, collective.rank, config.seed)
    rules = config.dense.rules(parameters)
    remembers = bool(memory.vectors)
    encodings = [
        (begin, (Codecs(codec, rules), kind(collective, compressor)))
        for begin, codec, kind in codecs_by_step(config, remembers=remembers)
    ]
    dense_kind = (
        ReduceScatter if config.reduce_scatter else reduction_of(DENSE, remembers=remembers)
    )
    dense_first = Codecs(DENSE), dense_kind(collective, compressor)
    return Averager(
        memory,
        collective,
        encodings,
        compressor,
        dense_first,
        skips=config.skips,
        dense=config.dense,
        decay=decay,
    )


def memory_of(config: HookConfig, workers: int) -> Memory:
    """Returns the memory object of the configuration, or creates it from its specification."""
    if isinstance(config.memory, Memory):
        return take(config.memory, workers)
    return make_memory(config.memory_spec, config.momentum, config.nesterov, workers)


def codecs_by_step(
    config: HookConfig, *, remembers: bool
) -> list[tuple[int, Codec[Any], ReductionType]]:
    """Lists the codecs of the schedule, each with its first step and its reduction.

    Args:
        config: how gradients are averaged.
        remembers: True if there is a memory.
    """
    own = fixed_reduction(config)
    if own is not None:
        begins = [0, *(int(phase.epoch) for phase in config.phases)]
        return [(*pair, own) for pair in zip(begins, config.codecs, strict=True)]
    later = [
        (int(phase.epoch), phase.codec, reduction_of(phase.codec, remembers=remembers))
        for phase in config.phases
    ]
    return [(0, config.codec, config.spec.reduction(remembers=remembers)), *later]


def fixed_reduction(config: HookConfig) -> ReductionType | None:
    """Returns the reduction of all codecs; None: the codec decides."""
    if config.reduce_scatter:
        return ReduceScatter
    return MeanOverSenders if config.mean == SENDERS else None
