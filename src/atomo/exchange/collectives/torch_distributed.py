"""Collectives over a process group of torch.distributed."""

import atexit
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Final, final
from weakref import WeakSet

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, UInt8
from torch import Tensor

from atomo.codecs import Law
from atomo.core.devices import to_device, to_host
from atomo.errors import ConfigError, DeadlineExpired, TransportError
from atomo.exchange.collectives.collective import Addend, Collective
from atomo.exchange.collectives.meeting import meeting_of
from atomo.exchange.collectives.pieces import Turn, chunks_of, cut, packed
from atomo.exchange.collectives.summation import Summation
from atomo.wire import Bytes

__all__ = ["TorchCollective"]

LENGTH: Final = 8  # bytes: an integer
COME_S: Final = 300.0  # one rank may do much before it makes a hook
ALL_JOIN: Final = (
    "every rank must make this hook or optimizer, such as with atomo.ddp_hook; give a longer "
    "timeout_s where one is only late"
)
STEP: Final = " of step "  # in the label of a gather of every step
CHUNKS: Final = 4  # of a sum; more => links are idle for less time, and threads wake up more often
DEADLINE: Final = "imed out"  # in the errors of gloo and NCCL about timeouts

Rows = UInt8[np.ndarray, "ranks length"]
Coming = Callable[[], Rows]
Operation = Callable[..., dist.Work | None]


@final
class TorchCollective(Collective):
    """Collectives over a new process group, with ranks of an existing process group.

    PyTorch matches collectives by the order in which they start. So nothing else may start a
    collective in this group, and one thread at a time uses it. A gather is complete when it
    returns.
    """

    def __init__(
        self,
        like: dist.ProcessGroup | None = None,
        timeout_s: float | None = None,
        members: Sequence[int] | None = None,
        come_s: float = COME_S,
    ) -> None:
        """Joins the group; every rank of `like` must do so, in the same order as other groups.

        PyTorch numbers the groups that a process makes. If `like` has only some of all ranks, the
        other ranks must make as many groups, or the next group of all ranks is never complete.

        Args:
            like: the process group with the ranks, the backend and the default deadline; None: the
                group of all ranks.
            timeout_s: the longest wait for another rank, seconds; None: the deadline of `like`.
            members: the ranks of the new group, by their numbers in `like`, increasing; None: all
                ranks of `like`.
            come_s: the longest wait for another rank to join, seconds, unless `timeout_s` is
                longer.

        Raises:
            ConfigError: torch.distributed was not initialised.
            DeadlineExpired: a rank does not join.
        """
        if not dist.is_initialized():
            raise ConfigError(
                "torch.distributed is not initialised: call torch.distributed.init_process_group"
            )
        parent = dist.group.WORLD if like is None else like
        assert parent is not None
        self._device = device_of(parent)
        # NCCL's collectives wait for each other on a device, and for the work before them on its
        # stream.
        self.in_one_order = self._device.type != "cpu"
        self._timeout_s = timeout_of(parent, self._device) if timeout_s is None else timeout_s
        parent_ranks, backend = (
            dist.get_process_group_ranks(parent),
            dist.get_backend_config(parent),
        )
        ranks = parent_ranks if members is None else [parent_ranks[rank] for rank in members]
        self._ranks = ranks
        if members is None:  # members of a split have met in the parent
            self._meet("group", max(come_s, timeout_s or 0), ALL_JOIN)
        part = len(ranks) < dist.get_world_size()  # then the other ranks are not here to help
        # Ranks may come late to the start of a job.
        limit = timedelta(seconds=max(self._timeout_s, timeout_of(parent, self._device)))
        group = dist.new_group(ranks, limit, backend, use_local_synchronization=part)
        assert isinstance(group, dist.ProcessGroup)  # this rank is a member
        self._group = group
        self.rank, self.size = dist.get_rank(group), len(ranks)
        self.send_s = self.wait_s = 0.0
        self._rooms: dict[str, int] = {}  # bytes, by label of a gather of every step
        joined.add(self)

    def leave(self) -> None:
        """Ends the group on this rank if that waits for no other rank. It is unusable afterwards.

        gloo's threads may still refer to tensors of completed collectives. To free a tensor, a
        thread needs the interpreter, and aborts the process if the interpreter has begun to end.
        """
        group = self.__dict__.pop("_group", None)
        if group is not None and self._device.type == "cpu" and dist.is_initialized():
            with suppress(ValueError):  # all groups were destroyed, and new groups made
                dist.destroy_process_group(group)

    def gather(self, data: Bytes, label: str) -> Iterator[Bytes]:
        # The label decides the protocol: a gather with " of step " in its label runs at every step,
        # with nearly the same length. Room for it travels beside the lengths, and one round
        # does. All ranks must give the same label, or their buffers differ in length.
        kind, repeated, _ = label.partition(STEP)
        room = self._rooms.get(kind, 0) if repeated else 0
        heads = self._rows(np.concatenate([np.array([data.size]).view(np.uint8), data[:room]]),
                           LENGTH + room, label)  # fmt: skip
        sizes: list[int] = np.ascontiguousarray(heads[:, :LENGTH]).view(np.int64)[:, 0].tolist()
        longest = max(sizes)
        if repeated:
            self._rooms[kind] = next_room(room, longest)
        whole = heads[:, LENGTH:]
        if longest > room:
            whole = np.concatenate([whole, self._rows(data[room:], longest - room, label)], 1)
        return (row[:size] for row, size in zip(whole, sizes, strict=True))

    def _rows(self, data: Bytes, length: int, label: str) -> Rows:
        """Gathers the data of each rank, in rows of one length, padded."""
        return self._begin_rows(data, length, label)()

    def _begin_rows(self, data: Bytes, length: int, label: str) -> Coming:
        padded = torch.zeros(length, dtype=torch.uint8)
        padded.numpy()[: data.size] = data  # `data` may be read-only
        rows = torch.empty(self.size, length, dtype=torch.uint8, device=self._device)
        gather = partial(dist.all_gather, [*rows.unbind()], to_device(padded, self._device))
        return self._begin(gather, rows, label)

    def swap(self, pieces: Sequence[Bytes], label: str) -> list[Bytes]:
        own = np.array([piece.size for piece in pieces], np.int64)
        rows = np.ascontiguousarray(self._rows(own.view(np.uint8), own.nbytes, label))
        sizes: list[int] = rows.view(np.int64)[:, self.rank].tolist()
        received = self._begin_swap(pieces, sizes, label)()
        return np.split(received, np.cumsum(sizes)[:-1])

    def sum(self, addends: Sequence[Addend], label: str) -> None:
        if any(Law.LOSSLESS not in addend.wire_codec.laws for addend in addends):
            self._sum_encoded(addends, label)
            return
        for addend in addends:
            values = to_device(addend.values, self._device)
            self._run(partial(dist.all_reduce, values), label)
            if values is not addend.values:
                addend.values.copy_(values)

    def meet(self, label: str, hint: str) -> None:
        # The name of the group is in the label, so that each hook on these ranks counts its own
        # meetings.
        self._meet(f"{label} of {self._group.group_name}", self._timeout_s, hint)

    def _meet(self, label: str, limit_s: float, hint: str) -> None:
        meeting = meeting_of(self._ranks, label)
        if meeting is not None and len(self._ranks) > 1:
            meeting.come()
            meeting.wait(limit_s, hint)

    def broadcast(self, values: Float[Tensor, " n"], label: str, root: int = 0) -> None:
        on_device = to_device(values, self._device)
        self._run(partial(dist.broadcast, on_device, group_src=root), label)
        if on_device is not values:
            values.copy_(on_device)

    def split(self, ranks: Sequence[int], *, one_host: bool) -> "TorchCollective":
        del one_host
        return TorchCollective(self._group, self._timeout_s, ranks)

    def _sum_encoded(self, addends: Sequence[Addend], label: str) -> None:
        """Sums encoded pieces in float32: a process group would add rounded values, and overflow.

        A reduce-scatter and an all-gather: the bytes that a rank sends do not grow with the number
        of ranks. All swaps begin before the first wait, so that links are busy while chunks are
        added up.
        """
        chunks = min(CHUNKS, chunks_of(addends, self.size))
        work = Summation(addends, self.rank, self.size, chunks, label)
        pieces = [
            [packed(piece, label) for piece in row] for row in cut(addends, self.size, chunks)
        ]
        sizes = [[piece.size for piece in row] for row in pieces]
        swaps = [self._swap(row, label) for row in pieces]
        gathers: list[Coming] = []
        for chunk, receive in enumerate(swaps):
            self._take(
                work, Turn(chunk, False, 0), receive(), [sizes[chunk][self.rank]] * self.size
            )
            own = work.frame(Turn(chunk, True, 0), self.rank)
            assert own is not None  # all addends have come
            gathers.append(self._begin_rows(own, max(sizes[chunk]), label))
        for chunk, receive in enumerate(gathers):
            self._take(work, Turn(chunk, True, 0), receive(), sizes[chunk])

    def _take(self, work: Summation, turn: Turn, rows: Rows, sizes: Sequence[int]) -> None:
        """Adds the frames of all other ranks at a turn, of these sizes, to a sum."""
        for source, size in enumerate(sizes):
            if source != self.rank:
                work.take(turn, source, rows[source, :size])

    def _swap(self, pieces: Sequence[Bytes], label: str) -> Coming:
        """Begins an all-to-all of pieces: this rank gets its own piece of every rank.

        All ranks send pieces of one length to the same rank.
        """
        length = pieces[self.rank].size
        receive = self._begin_swap(pieces, [length] * self.size, label)
        return lambda: receive().reshape(self.size, length)

    def _begin_swap(
        self, pieces: Sequence[Bytes], sizes: Sequence[int], label: str
    ) -> Callable[[], Bytes]:
        """Begins an all-to-all. Returns a function that waits for this rank's pieces, joined.

        Args:
            pieces: the piece for each rank.
            sizes: the size of the piece from each rank.
            label: the name in errors.
        """
        sent = to_device(torch.from_numpy(np.concatenate(pieces)), self._device)
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        lengths = [piece.size for piece in pieces]
        swap = partial(dist.all_to_all_single, received, sent, [*sizes], lengths)
        return self._begin(swap, received, label)

    def _begin(
        self, operation: Operation, rows: Tensor, label: str
    ) -> Callable[[], UInt8[np.ndarray, "..."]]:
        """Begins an operation that fills rows. Returns a function that waits for the rows."""
        with self._waiting(label):
            work = operation(group=self._group, async_op=True)

        def finished() -> UInt8[np.ndarray, "..."]:
            self._finish(work, label)
            received: UInt8[np.ndarray, "..."] = to_host([rows])[0].numpy()
            return received

        return finished

    def _run(self, operation: Operation, label: str) -> None:
        with self._waiting(label):
            work = operation(group=self._group, async_op=True)
        self._finish(work, label)

    def _finish(self, work: dist.Work | None, label: str) -> None:
        assert work is not None  # this rank is a member
        with self._waiting(label):
            work.wait(timedelta(seconds=self._timeout_s))

    @contextmanager
    def _waiting(self, label: str) -> Iterator[None]:
        """Adds up the time of its block, and turns errors of the process group into ours."""
        name, began = f"rank {self.rank} of {self.size}", time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            if DEADLINE in str(error):
                raise DeadlineExpired(
                    f"{name} waited {self._timeout_s:g} s for {label} of the others; the deadline "
                    "is timeout_s, or else the process group's"
                ) from error
            raise TransportError(f"{name}: torch.distributed lost {label}: {error}") from error
        finally:
            self.wait_s += time.perf_counter() - began


def next_room(room: int, longest: int) -> int:
    """Returns the bytes that travel beside the lengths at the next step.

    Lengths vary from step to step, and a message that does not fit costs a second round, which
    wakes all ranks again. So a room shrinks slowly, unless it is far too large.

    Args:
        room: the bytes of this step.
        longest: the bytes of the longest message of this step.
    """
    return max(longest + longest // 32 + LENGTH, min(room - room // 64, longest + longest // 8))


joined: Final[WeakSet[TorchCollective]] = WeakSet()


@atexit.register
def leave_all() -> None:
    """Leaves all groups before the interpreter ends, whether or not they were destroyed."""
    for collective in [*joined]:
        collective.leave()


def device_of(group: dist.ProcessGroup) -> torch.device:
    """Returns the device of the tensors that a group moves: the CPU if possible."""
    config = dist.get_backend_config(group)
    if "cpu:" in config:
        return torch.device("cpu")
    kind = config.partition(":")[0]
    return torch.device(kind, torch.get_device_module(kind).current_device())


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> float:
    """Returns the longest wait in a group, seconds. PyTorch has no public way to read it."""
    options = getattr(group._get_backend(device), "options", None)
    limit = getattr(options, "_timeout", dist.default_pg_timeout)
    assert isinstance(limit, timedelta)
    return limit.total_seconds()
