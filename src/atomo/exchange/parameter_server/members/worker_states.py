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
    """States of workers on their way to the master and back."""

    def __init__(
        self,
        members: Members,
        commands: CommandSender,
        receiver: FrameReceiver,
        refuse: Callable[[int, FrameError], None],
    ) -> None:
        self._members, self._commands, self._receiver = members, commands, receiver
        self._refuse = refuse
        self._due: list[int] = []  # workers whose states are missing

    def ask(self, workers: Sequence[int], purpose: str) -> dict[int, dict[str, Tensor]]:
        """Returns the states of these workers, except those that die."""
        for worker in workers:
            self._commands.send(worker, Kind.SAVE)
        states: dict[int, dict[str, Tensor]] = {}
        living = self._members.living
        while missing := [
            worker for worker in workers if worker in living and worker not in states
        ]:
            self._due = missing
            what = f"the state of worker {missing} for {purpose}"
            if received := self._receiver.any(missing, what):
                self._take(*received, states)
        self._due = []
        return states

    def ask_again(self, worker: int) -> None:
        """Asks again for the state of a worker after a refusal: the refused frame may have been the
        state.
        """
        if worker in self._due:
            self._commands.send(worker, Kind.SAVE)

    def _take(self, message: Message, header: Header, states: dict[int, dict[str, Tensor]]) -> None:
        try:
            check_state(header, message.source, self._due)
            states[message.source] = read_state(message.data)
        except FrameError as error:
            self._refuse(message.source, error)

    def give(self, worker: int, state: State) -> None:
        """Sends a worker the state that it continues from."""
        frame = state_frame(self._commands.header(worker, Kind.STATE), state)
        self._members.send(worker, frame, "a command to state")

    def lend(self, joining: Sequence[int], spare_state: Callable[[State], State]) -> None:
        """Sends joining spares a part of the state of the first other living worker."""
        others = [worker for worker in self._members.living if worker not in joining]
        for other in others:
            if states := self.ask([other], "those who join"):
                for worker in joining:
                    self.give(worker, spare_state(states[other]))
                return
