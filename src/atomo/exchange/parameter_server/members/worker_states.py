"""States that workers keep from step to step: collected and sent while no worker computes."""

from collections.abc import Callable, Sequence
from typing import final

from torch import Tensor

from atomo.errors import FrameError
from atomo.exchange.parameter_server.frames.checks import check_state
from atomo.exchange.parameter_server.frames.commands import CommandSender
from atomo.exchange.parameter_server.frames.frame_receiver import FrameReceiver
from atomo.exchange.parameter_server.members.members import Members
from atomo.exchange.state import State, read_state, state_frame
from atomo.transports import Message
from atomo.wire import Header, Kind

__all__ = ["WorkerStates"]


@final
class WorkerStates:
    """Collector and sender of worker states."""

    def __init__(
        self,
        members: Members,
        commands: CommandSender,
        receiver: FrameReceiver,
        refuse: Callable[[int, FrameError], None],
    ) -> None:
        self._members, self._commands, self._receiver = members, commands, receiver
        self._refuse = refuse
        self._pending: list[int] = []  # workers whose states are missing

    def collect(self, workers: Sequence[int], purpose: str) -> dict[int, dict[str, Tensor]]:
        """Returns the states of these workers, except of workers that die."""
        for worker in workers:
            self._commands.send(worker, Kind.SAVE)
        states: dict[int, dict[str, Tensor]] = {}
        living = self._members.living
        while missing := [
            worker for worker in workers if worker in living and worker not in states
        ]:
            self._pending = missing
            label = f"the state of worker {missing} for {purpose}"
            if received := self._receiver.any(missing, label):
                self._store(*received, states)
        self._pending = []
        return states

    def repeat_query(self, worker: int) -> None:
        """Repeats the query for the state of a worker after a refusal, if the state is missing: the
        refused frame may have been the state.
        """
        if worker in self._pending:
            self._commands.send(worker, Kind.SAVE)

    def _store(
        self, message: Message, header: Header, states: dict[int, dict[str, Tensor]]
    ) -> None:
        try:
            check_state(header, message.source, self._pending)
            states[message.source] = read_state(message.data)
        except FrameError as error:
            self._refuse(message.source, error)

    def send(self, worker: int, state: State) -> None:
        """Sends a worker the state from which it continues."""
        frame = state_frame(self._commands.header(worker, Kind.STATE), state)
        self._members.send(worker, frame, "a command to state")

    def copy_to(self, joining: Sequence[int], spare_state: Callable[[State], State]) -> None:
        """Sends joining spares a part of the state of the first other living worker."""
        lenders = [worker for worker in self._members.living if worker not in joining]
        for lender in lenders:
            if states := self.collect([lender], "the joining spares"):
                for worker in joining:
                    self.send(worker, spare_state(states[lender]))
                return
