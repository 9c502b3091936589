"""Optimizers that take local steps, and average what these have changed at the end of a round."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar, Final, final

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import Unpack

from atomo.codecs import Codec, Law
from atomo.core.names import resolve
from atomo.errors import CheckpointError, ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.collectives.torch_distributed import TorchCollective
from atomo.exchange.outer.anchor import Anchor
from atomo.exchange.outer.optimizer import AUTO, OuterSGD, automatic_outer, parse_outer
from atomo.exchange.outer.rounds import Rounds, split_fragments
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.adapter.fragments import FragmentExchange
from atomo.hooks.gradient_owners import OPTIMIZERS
from atomo.hooks.hook_config import HookConfig, make_exchange
from atomo.hooks.job import join_job
from atomo.hooks.optimizer import JOB_TIMEOUT_S, AveragedOptimizer, free_parameters, grouped
from atomo.hooks.option_checks import check_bucket_mb, check_group
from atomo.hooks.options import LocalStepsOptions, takes_options
from atomo.hooks.replicas import replicate
from atomo.hooks.resolve_options import config_of
from atomo.memory import NoMemory, Residual

__all__ = ["LocalStepsOptimizer", "local_steps"]

FORMAT: Final = 1
MEANS: Final = ("workers", "senders")


@takes_options(LocalStepsOptions, timeout_s=JOB_TIMEOUT_S)
def local_steps(
    model: nn.Module,
    optimizer: Optimizer,
    code: str | Codec[Any],
    *,
    every: int = 30,
    outer: str | OuterSGD = "sgd(lr=0.7, momentum=0.9, nesterov=yes)",
    fragments: int = 1,
    overlap: int = 0,
    mix: float = 0.0,
    outer_mean: str = "workers",
    bucket_mb: float = 4.0,
    process_group: ProcessGroup | None = None,
    collective: Collective | None = None,
    **options: Unpack[LocalStepsOptions],
) -> "LocalStepsOptimizer":
    """Wraps an optimizer so that ranks train alone, and average their weights every few steps.

        optimizer = atomo.local_steps(model, torch.optim.AdamW(...), "topk(ratio=0.01)", every=30)

    Use this in a training loop without DistributedDataParallel, in each process of a job launched
    by `torchrun` or `mpirun`, or in a single process. The call broadcasts the weights of rank 0,
    the first anchor. After `every` steps the differences anchor - weights of all ranks are
    averaged, compressed, as `wrap_optimizer` averages gradients. The outer optimizer steps the
    anchor with the mean difference as gradient, and all replicas continue from the anchor. This is
    DiLoCo; with fragments, overlap and mix it is Streaming DiLoCo.

    The wrapped optimizer is never reset. Its schedules count local steps; clipping and weight decay
    apply to local steps alone. Steps of the optimizer are counted, not batches: a `GradScaler`
    skips some, so end the loop by `optimizer.steps`, which all ranks must bring to the same number.

    Args:
        model: the model.
        optimizer: the optimizer of parameters of `model`, with all its parameter groups.
        code: the codec of differences, or its specification such as "topk(ratio=0.01)".
        every: the number of steps in a round.
        outer: the outer optimizer, as a specification or an `atomo.OuterSGD`; "auto": a default by
            `every`, the number of ranks and the memory, which rank 0 prints.
        fragments: the number of parts of the model; one is exchanged every `every / fragments`
            steps.
        overlap: the number of steps during which the exchange of a fragment continues in the
            background.
        mix: the weight of a replica's own weights in those that it continues from, from 0 to 1.
        outer_mean: "workers": the mean of an entry is over all ranks; "senders": over the ranks
            that sent the entry, as in public code of SparseLoCo.
        bucket_mb: the size of a bucket, in MB.
        process_group: the ranks, as a process group; None: `collective`.
        collective: the ranks; None: all ranks of the job.
        options: see `HookOptions`; its steps are rounds here.

    Returns:
        The optimizer for the training loop. Its `exchange` has the memories and `stats`.

    Raises:
        TypeError: the keyword of an option is unknown.
        ConfigError: an option is invalid, the memory does not suit the codec or applies momentum,
            the optimizer has parameters that are not the model's, something else averages a
            parameter already, or ranks passed different arguments.
    """
    check_arguments(model, optimizer, code)
    check_bucket_mb(bucket_mb)
    mean = resolve("outer_mean", outer_mean, MEANS)
    rounds = Rounds(every, fragments, overlap, mix)
    given = None if outer == AUTO else parse_outer(outer)
    config = without_momentum(config_of(code, options, bucket_mb=bucket_mb))
    parameters = free_parameters(optimizer, model)
    parts = split_fragments({name: p.numel() for name, p in parameters.items()}, fragments)
    ranks = ranks_of(process_group, collective, options.get("timeout_s") or JOB_TIMEOUT_S)
    chosen = given or automatic(config, every, ranks)
    config = replace(config, local_steps=f"{rounds}, mix={mix}, outer={chosen}", mean=mean)
    exchange = fragment_exchange(config, ranks, model, parameters, parts)
    replicate(model, ranks)
    anchor = Anchor(parameters, floating_buffers(model), chosen)
    exact = is_exact(config, ranks) and chosen.averages and not overlap
    wrapped = LocalStepsOptimizer(optimizer, exchange, anchor, rounds, exact=exact)
    OPTIMIZERS.add(wrapped, parameters.values())
    return wrapped


@final
class LocalStepsOptimizer(Optimizer):
    """An optimizer that counts its steps, and exchanges fragments when they are due.

    It is a subclass of Optimizer because schedulers and scalers require one.
    """

    # A scaler that finds a fused optimizer would leave the check for infinities to it.
    _step_supports_amp_scaling: ClassVar[bool] = False

    def __init__(
        self,
        optimizer: Optimizer,
        fragments: FragmentExchange,
        anchor: Anchor,
        rounds: Rounds,
        *,
        exact: bool = False,
    ) -> None:
        # Optimizer.__init__ would create parameter groups and state that are never used.
        self.optimizer = optimizer
        self.exchange: Exchange = fragments.exchange
        self.steps = 0
        """The number of steps of the wrapped optimizer."""
        self._fragments, self._anchor, self._rounds = fragments, anchor, rounds
        self._exact = exact

    def __getattr__(self, name: str) -> Any:
        """Returns `param_groups`, `state`, `defaults` and hooks of the wrapped optimizer."""
        return getattr(self.__dict__["optimizer"], name)

    @property
    def outer(self) -> OuterSGD:
        """The outer optimizer."""
        return self._anchor.outer

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step of the wrapped optimizer, and the part of an exchange that is due after it.

        Raises:
            Diverged: the difference of a replica is not finite, on this rank or another.
            AtomoError: the exchange failed.
        """
        loss = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        self.steps += 1
        beginning = self._rounds.begins(self.steps)
        if beginning is not None:
            self._fragments.begin(beginning, self._anchor.difference)
        if self._rounds.ends(self.steps) is not None:
            self._end()
        return loss

    def _end(self) -> None:
        """Ends the exchange of a fragment: steps the anchor, and averages the buffers."""
        means = self._fragments.finish()
        self._anchor.step(means, self._rounds.mix, exact=self._exact)
        self._fragments.clear()
        self._fragments.average_buffers()
        self._anchor.keep_buffers()

    def anchor(self) -> AbstractContextManager[None]:
        """Puts the anchor into the model for a block, to evaluate it or to save it.

        The anchor is the same on all ranks at each step, and needs no communication. Buffers are
        those of the last exchange.
        """
        return self._anchor.in_model()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this replica, without the weights of the model.

        To continue in the middle of a round, each rank saves this and `model.state_dict()`. With
        `overlap`, the call waits for the exchange in flight.
        """
        self._fragments.finish()
        return self._described(self.exchange.state_dict(), replica=self.exchange.rank)

    def gather(self) -> dict[str, Any] | None:
        """Gathers the memories of all ranks at rank 0; None on other ranks. All ranks must call it.

        `load_state_dict` takes the state on any number of ranks, each of which begins at the
        anchor. The local steps since the last exchange are not in it.
        """
        self._fragments.finish()
        gathered = self.exchange.gather()
        return None if gathered is None else self._described(gathered, replica=None)

    def _described(self, exchange: dict[str, Any], replica: int | None) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "rounds": str(self._rounds),
            "replica": replica,
            "steps": self.steps,
            "anchor": self._anchor.state_dict(),
            "in_flight": self._fragments.state_dict(),
            "exchange": exchange,
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of `state_dict` or `gather`.

        A state of the same number of ranks continues in the middle of a round; load the weights of
        the same rank into the model. Otherwise the model gets the anchor, after the step for a
        fragment that was in flight, and the steps to the next exchange begin again.

        Raises:
            CheckpointError: the state has another format, model, memory, or other rounds.
        """
        check_state(state_dict, self._rounds)
        self._anchor.load_state_dict(state_dict["anchor"])
        self.optimizer.load_state_dict(state_dict["optimizer"])
        self.exchange.load_state_dict(state_dict["exchange"])
        self.steps = state_dict["steps"]
        self._fragments.load_state_dict(state_dict["in_flight"])
        ranks = state_dict["exchange"]["ranks"]
        if state_dict["replica"] is None or ranks != self.exchange.owner.memories:
            self._begin_at_anchor()

    def _begin_at_anchor(self) -> None:
        """Drops local steps. Memories have counted what is in flight as sent, so it is used."""
        means, rest = self._fragments.finish(), self.steps % self._rounds.period
        self._anchor.step(means, 0.0)
        self._fragments.clear()
        self.steps += self._rounds.period - rest if means else -rest
        self._anchor.restore()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ConfigError: ranks agreed on the parameters when the optimizer was wrapped."""
        raise ConfigError("add all groups of parameters before local_steps")

    def __repr__(self) -> str:
        return f"LocalStepsOptimizer({self.optimizer!r}, {self._rounds}, outer={self.outer})"


def check_arguments(model: object, optimizer: object, code: object) -> None:
    """Raises ConfigError for a model, an optimizer or a code of another type."""
    call = "atomo.local_steps(model, optimizer, 'topk(ratio=0.01)')"
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model comes first, not a {type(model).__name__}: {call}")
    if isinstance(model, DistributedDataParallel):
        raise ConfigError(
            "DistributedDataParallel averages the gradients of each step, which local steps do "
            "without: give the plain model"
        )
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"a torch.optim.Optimizer is needed, not a {type(optimizer).__name__}: {call}"
        )
    if isinstance(optimizer, AveragedOptimizer | LocalStepsOptimizer):
        raise ConfigError("the optimizer is wrapped already, and would average twice")
    if not isinstance(code, str | Codec):
        raise ConfigError(f"a code is needed, not a {type(code).__name__}: {call}")


def check_state(state: Mapping[str, Any], rounds: Rounds) -> None:
    """Raises CheckpointError for a state of another format, or of other rounds."""
    if state.get("format") != FORMAT or "anchor" not in state:
        raise CheckpointError(
            f"format {state.get('format')!r}; this one reads {FORMAT}, from state_dict() or "
            "gather() of the optimizer of atomo.local_steps"
        )
    if state["rounds"] != str(rounds):
        raise CheckpointError(
            f"the state has {state['rounds']}, and this optimizer has {rounds}: give the same"
        )


def without_momentum(config: HookConfig) -> HookConfig:
    """Returns a configuration whose memory applies no momentum.

    Raises:
        ConfigError: a memory with momentum was given.
    """
    kind = config.memory_kind
    if not kind.has_momentum and not kind.makes_update:
        return config
    if config.memory == "auto":
        return replace(config, memory=Residual.id if kind.feeds_back else NoMemory.id)
    raise ConfigError(
        f"memory {config.memory_spec} computes a step from gradients, and local steps send "
        "differences of weights: give memory='residual', and momentum to the optimizers"
    )


def ranks_of(
    group: ProcessGroup | None, collective: Collective | None, timeout_s: float
) -> Collective:
    """Returns the ranks that average: those of a process group, a collective, or the job."""
    check_group(group)
    if group is not None:
        return TorchCollective(group, timeout_s)
    return join_job(timeout_s) if collective is None else collective


def automatic(config: HookConfig, every: int, ranks: Collective) -> OuterSGD:
    """Returns the default outer optimizer; rank 0 prints it."""
    outer = automatic_outer(every, ranks.size, feeds_back=config.memory_kind.feeds_back)
    if ranks.rank == 0:
        sys.stderr.write(f"atomo: outer=auto is {outer.about}\n")
    return outer


def floating_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Returns the buffers that have a mean, by name: those of floating-point numbers."""
    return {n: b for n, b in model.named_buffers() if b.is_floating_point() and b.numel()}


def fragment_exchange(
    config: HookConfig,
    ranks: Collective,
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    parts: Sequence[Sequence[str]],
) -> FragmentExchange:
    """Creates the exchange of the fragments of a model. All ranks pass equal arguments.

    Raises:
        ConfigError: as from `make_exchange`.
    """
    exchange = make_exchange(config, ranks, parameters)
    buckets = [
        grouped({name: parameters[name] for name in names}, config.codec, config.bucket_mb)
        for names in parts
    ]
    buffers = floating_buffers(model)
    dense = HookConfig("sgd", memory=NoMemory.id)
    averager = make_exchange(dense, ranks, buffers) if buffers else None
    return FragmentExchange(exchange, buckets, buffers, averager)


def is_exact(config: HookConfig, ranks: Collective) -> bool:
    """True if one replica trains alone, and its codec and its memory lose nothing."""
    lossless = config.spec.named is None and all(Law.LOSSLESS in c.laws for c in config.codecs)
    return ranks.size == 1 and lossless and config.memory_kind is NoMemory
