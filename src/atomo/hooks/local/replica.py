"""A replica that trains alone, and exchanges a fragment of its model every few steps."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from atomo.errors import CheckpointError, ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.outer.anchor import Anchor
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.adapter.fragments import FragmentExchange
from atomo.hooks.local.gathering import gather_dicts
from atomo.options.outer import Outer, OuterSign
from atomo.options.rounds import Rounds

__all__ = ["LocalReplica"]

FORMAT: Final = 1


@final
class LocalReplica:
    """The rounds of one replica: its anchor, its exchange, and the number of its steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        fragments: FragmentExchange,
        anchor: Anchor,
        rounds: Rounds,
        ranks: Collective,
        weights: Mapping[str, Tensor],
        *,
        exact: bool = False,
        sharded: bool = False,
    ) -> None:
        """Begins the first round.

        Args:
            optimizer: the inner optimizer.
            fragments: exchanges differences.
            anchor: the weights from which replicas begin.
            rounds: the steps after which exchanges begin and end.
            ranks: all replicas.
            weights: the weights and buffers of the model, by name.
            exact: True if one replica trains alone, without loss.
            sharded: True if this rank has some rows of the parameters.
        """
        self.optimizer = optimizer
        self.exchange: Exchange = fragments.exchange
        self.steps = 0
        self._fragments, self._anchor, self._rounds = fragments, anchor, rounds
        self._ranks, self._weights, self._exact = ranks, weights, exact
        self._sharded, outer = sharded, anchor.outer
        self._follows = isinstance(outer, OuterSign) and outer.lr is None

    @property
    def outer(self) -> Outer:
        """The outer optimizer."""
        return self._anchor.outer

    @property
    def rounds(self) -> Rounds:
        """The steps after which exchanges begin and end."""
        return self._rounds

    def after_step(self, *_: object) -> None:
        """Counts a step of the inner optimizer, and begins or ends the exchange that is due.

        Raises:
            Diverged: the difference of a replica is not finite, on this rank or another.
            AtomoError: the exchange failed.
        """
        # A scaler has a fused optimizer skip a step inside `step`.
        if bool(getattr(self.optimizer, "found_inf", None) or False):
            return
        self.steps += 1
        if self._rounds.late:
            if self._rounds.ends(self.steps) is not None:
                self._turn()
            return
        beginning = self._rounds.begins(self.steps)
        if beginning is not None:
            self._fragments.begin(beginning, self._difference)
        if self._rounds.ends(self.steps) is not None:
            self._end()

    def _difference(self, name: str) -> Tensor:
        """Returns the difference of a parameter, transformed if coefficients are exchanged."""
        return self._anchor.coefficients(self._anchor.difference(name))

    def _end(self) -> None:
        """Ends the exchange of a fragment: steps the anchor, and averages the buffers."""
        means = self._means()
        self._anchor.step(means, self._rounds.mix, exact=self._exact)
        self._fragments.clear()
        self._average_buffers()

    def _turn(self) -> None:
        """Applies the mean of the round before, and begins the exchange of the last round."""
        changes = {n: self._anchor.difference(n) for part in self._fragments.names for n in part}
        self._anchor.step_late(self._means(), changes, exact=self._exact)
        self._fragments.clear()
        self._average_buffers()
        self._fragments.begin(0, lambda name: self._anchor.coefficients(changes[name]))

    def _means(self) -> dict[str, Tensor]:
        """Waits for the fragment in flight; returns its mean differences."""
        if self._follows:
            self._anchor.set_learning_rate(float(self.optimizer.param_groups[0]["lr"]))
        return self._anchor.entries(self._fragments.finish())

    def _average_buffers(self) -> None:
        self._fragments.average_buffers()
        self._anchor.keep_buffers()

    def anchor(self) -> AbstractContextManager[None]:
        """Puts the anchor into the model for a block; see `LocalStepsOptimizer.anchor`."""
        return self._anchor.in_model()

    def restore_anchor(self) -> None:
        """Puts the anchor into the model."""
        self._anchor.restore()

    def weights(self) -> dict[str, Tensor]:
        """Returns copies of the weights and buffers of the model, by name."""
        return {name: tensor.detach().clone() for name, tensor in self._weights.items()}

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Puts weights and buffers into the model.

        Raises:
            CheckpointError: they belong to another model.
        """
        for name, tensor in weights.items():
            if name not in self._weights or self._weights[name].shape != tensor.shape:
                raise CheckpointError(f"the state has weights {name!r}, of another model")
            self._weights[name].detach().copy_(tensor)

    def state_dict(self, *, weights: bool = False) -> dict[str, Any]:
        """Returns the state of this replica, after a wait for the exchange in flight.

        Args:
            weights: True to include the weights of the model.
        """
        self._fragments.finish()
        state = self._described(self.exchange.state_dict(), replica=self.exchange.rank)
        return state | {"model": self.weights()} if weights else state

    def gather(self, *, weights: bool = False) -> dict[str, Any] | None:
        """Gathers the state of all ranks at rank 0; None on other ranks. All ranks must call it.

        Args:
            weights: True to include the weights of all replicas.

        Raises:
            ConfigError: the model is sharded.
        """
        if self._sharded:
            raise ConfigError(
                "gather() is for whole models: each rank of a sharded model saves state_dict()"
            )
        self._fragments.finish()
        gathered = self.exchange.gather()
        own = self.optimizer.state_dict()
        numbers = range(sum(len(group["params"]) for group in own["param_groups"]))
        moments = {str(number): own["state"].get(number, {}) for number in numbers}
        everyone = gather_dicts(self._ranks, moments, "the moments")
        models = gather_dicts(self._ranks, {"model": self.weights()}, "the weights", weights)
        if gathered is None or everyone is None:
            return None
        state = self._described(gathered, replica=None)
        state["moments"] = {str(r): numbered(moments) for r, moments in enumerate(everyone)}
        if models:
            state["models"] = {str(r): model["model"] for r, model in enumerate(models)}
        return state

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

    def load_state_dict(self, state: Mapping[str, Any], *, inner: bool = True) -> None:
        """Loads a state of `state_dict` or `gather`; see `LocalStepsOptimizer.load_state_dict`.

        Args:
            state: the state.
            inner: False if the caller loads the state of the inner optimizer.

        Raises:
            CheckpointError: the state has another format, model, memory, or other rounds.
        """
        check_state(state, self._rounds)
        self._anchor.load_state_dict(state["anchor"])
        if inner:
            self.load_inner(state)
        self.exchange.load_state_dict(state["exchange"])
        self.steps = state["steps"]
        self._fragments.load_state_dict(state["in_flight"])
        if self._continues(state):
            models = state.get("models", {})
            self.load_weights(models.get(str(self.exchange.rank), state.get("model", {})))
        else:
            self._begin_at_anchor()

    def load_inner(self, state: Mapping[str, Any]) -> None:
        """Loads the state of the inner optimizer: that of this rank, if all ranks have saved."""
        own = state["optimizer"]
        if moments := state.get("moments"):
            own = {**own, "state": moments[str(self.exchange.rank % len(moments))]}
        self.optimizer.load_state_dict(own)

    def _continues(self, state: Mapping[str, Any]) -> bool:
        """True if a state has the round of this rank, which then continues."""
        if state["replica"] is None:
            return len(state.get("models", ())) == self.exchange.size
        return bool(state["exchange"]["ranks"] == self.exchange.owner.memories)

    def _begin_at_anchor(self) -> None:
        """Drops local steps. Memories have counted what is in flight as sent, so it is used."""
        means, rounds = self._means(), self._rounds
        self._anchor.step(means, 0.0)
        self._fragments.clear()
        dropped = -rounds.since(self.steps)
        self.steps += rounds.until(self.steps) if means and not rounds.late else dropped
        self._anchor.restore()
        self._anchor.begin()


def numbered(moments: Mapping[str, Mapping[str, Any]]) -> dict[int, Any]:
    """Returns moments by the numbers of parameters, without parameters that have none."""
    return {int(number): entries for number, entries in moments.items() if entries}


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
