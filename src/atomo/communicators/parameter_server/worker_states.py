"""What workers keep from step to step: asked for, and given, while nobody computes."""

from collections.abc import Callable, Sequence
from typing import final

from torch import Tensor

from atomo.communicators.parameter_server.checks import check_state
from atomo.communicators.parameter_server.commands import CommandSender
from atomo.communicators.parameter_server.frame_receiver import FrameReceiver
from atomo.communicators.parameter_server.members import Members
from atomo.communicators.state import State, read_state, state_frame
from atomo.errors import FrameError
from atomo.transports import Message
from atomo.wire import Header, Kind

__all__ = ["WorkerStates"]


@final
class WorkerStates:
    """The states of workers, on their way to the master and back."""

    def __init__(
        self,
        members: Members,
        commands: CommandSender,
        receiver: FrameReceiver,
        refuse: Callable[[int, FrameError], None],
    ) -> None:
        self._members, self._commands, self._receiver = members, commands, receiver
        self._refuse = refuse
        self._due: list[int] = []  # whose states are waited for

    def ask(self, workers: Sequence[int], purpose: str) -> dict[int, dict[str, Tensor]]:
        """What these workers keep, as far as they live."""
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
        """To a worker of which something was refused: it may have been its state."""
        if worker in self._due:
            self._commands.send(worker, Kind.SAVE)

    def _take(self, message: Message, header: Header, states: dict[int, dict[str, Tensor]]) -> None:
        try:
            check_state(header, message.source, self._due)
            states[message.source] = read_state(message.data)
        except FrameError as error:
            self._refuse(message.source, error)

    def give(self, worker: int, state: State) -> None:
        """A worker goes on from this state."""
        frame = state_frame(self._commands.header(worker, Kind.STATE), state)
        self._members.send(worker, frame, "an order to state")

    def lend(self, joining: Sequence[int], spare_state: Callable[[State], State]) -> None:
        """Those who join begin with what is lent of the state of the first other one that lives."""
        others = [worker for worker in self._members.living if worker not in joining]
        for other in others:
            if states := self.ask([other], "those who join"):
                for worker in joining:
                    self.give(worker, spare_state(states[other]))
                return
