"""A server and its workers over the in-process transport, with books of every gradient."""

import threading
from collections.abc import Collection

import torch
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.errors import PeerLost
from atomo.exchange import Client, Compressor, GradientCounts, Report, Server
from atomo.exchange.parameter_server.weight_sync import FullSync
from atomo.exchange.sharing import part
from atomo.fusion import plan
from atomo.memory import Residual
from atomo.options.grouping import megabytes
from atomo.transports import Transport, network
from atomo.wire import Compression, Kind

__all__ = ["ENTRIES", "IMAGES", "PARAMETERS", "RAW", "REPORT", "TIMEOUT_S", "ServerHarness", "kept"]

PARAMETERS = [("w", Size((4, 3))), ("b", Size((4,)))]
ENTRIES = 16
IMAGES = 13  # of a step: workers that divide them seldom get as many each
RAW = Compression(codec="none")
TIMEOUT_S = 600.0  # only a hang takes as long
REPORT = Report(1.0, 2.0, 3.0, 0.1, 0.2, 0.3, 0.4)
ASKED_TO_COMPUTE = (Kind.WEIGHTS, Kind.BEGIN)


class ServerHarness:
    """A server, workers whose gradient is 1 in the entry of their rank and 0 elsewhere, and spares
    that become such workers.
    """

    def __init__(
        self,
        workers: int,
        needed: int,
        min_workers: int = 1,
        timeout_s: float = TIMEOUT_S,
        relays: bool = False,
        spares: int = 0,
        lends: bool = False,
        lags: Collection[tuple[int, int]] = (),
    ):
        """Nobody works yet.

        Args:
            lends: whether a spare begins with what another worker has.
            lags: workers and steps for which they wait, where that can be, until these are closed.
        """
        self.buckets = plan(PARAMETERS, make_codec("sgd"), megabytes(20e-6))  # two
        self.transports = network(1 + workers + spares)
        self.ends: list[Transport] = [*self.transports[1:]]
        self.server = Server(
            self.transports[0],
            self.buckets,
            needed,
            timeout_s,
            FullSync(relays),
            late_counts=True,
            min_workers=min_workers,
            spares=spares,
            images=IMAGES,
            spare_state=dict if lends else None,
        )
        self.workers = workers
        self.memories = [Residual() for _ in self.ends]
        self.computed = [0 for _ in self.ends]
        self.spare_state: dict[int, float] = {}  # rank -> the state given to it
        self.shared: dict[tuple[int, int], tuple[int, ...]] = {}  # by step and worker
        self.sum = torch.zeros(ENTRIES)
        self.given = torch.zeros(ENTRIES)  # whole gradients that went into steps, by rank
        self.books: list[tuple[GradientCounts, int]] = []
        self.image_books: list[tuple[GradientCounts, int]] = []
        self._lags, self._closed = {*lags}, 0
        self._busy: set[int] = set()
        self._changed = threading.Condition()

    def client(self, worker: int) -> Client:
        compressor = Compressor(self.memories[worker - 1], RAW, worker, seed=0)
        waits = worker > self.workers
        return Client(self.ends[worker - 1], ENTRIES, compressor, TIMEOUT_S, is_spare=waits)

    def answer(
        self, client: Client, worker: int, buckets: int = 2, images: int = 1, first: int = 0
    ) -> None:
        """The gradient of one step; a part of it, if only some buckets are sent."""
        client.begin(self.buckets)
        for bucket in self.buckets[first:buckets]:
            whole = torch.zeros(ENTRIES)
            whole[worker] = 1.0
            client.push(bucket, whole[bucket.offset : bucket.offset + bucket.size].clone())
        if buckets == len(self.buckets):
            self.computed[worker - 1] += 1
            client.flush()
            client.report(Report(1.0, 1.0, float(images), 0.1, 0.2, 0.3, 0.4))

    def work(self, worker: int, client: Client | None = None) -> None:
        """A worker from its first order, or its next one, to its last, or to its death."""
        client = client or self.client(worker)
        try:
            while self._serves(client, worker):
                self._is_busy(worker, False)
        except PeerLost as lost:
            if lost.rank != worker:  # a worker hears of no death but its own
                raise
        finally:
            self._is_busy(worker, False)

    def _serves(self, client: Client, worker: int) -> bool:
        """Carries out a command; True if another follows."""
        order = client.pull()
        self._is_busy(worker, True)
        if order.kind is Kind.SAVE:
            # A number of the one who lends is enough.
            state = {"kept": kept(self.memories[worker - 1]), "who": torch.tensor(float(worker))}
            client.send_state(state)
        elif order.state is not None:
            self.spare_state[worker] = float(order.state["who"])
        elif order.kind in ASKED_TO_COMPUTE:
            self.shared[order.step, worker] = order.workers
            self._lag(worker, order.step)
            place = order.workers.index(worker)
            images = len(part(IMAGES, place, len(order.workers)))
            self.answer(client, worker, images=images)
        return order.kind is not Kind.STOP

    def _is_busy(self, worker: int, busy: bool) -> None:
        with self._changed:
            (self._busy.add if busy else self._busy.discard)(worker)
            self._changed.notify_all()

    def _lag(self, worker: int, step: int) -> None:
        """Waits until a step is closed, or no worker contributes to it any more."""
        if (worker, step) not in self._lags:
            return
        self._is_busy(worker, False)
        with self._changed:
            self._changed.wait_for(lambda: self._closed >= step or not self._busy, TIMEOUT_S)
        self._is_busy(worker, True)

    def step(self, step: int) -> list[int]:
        """Runs the master's part of a step; returns the ranks that counted."""
        self.server.broadcast(step, torch.full((ENTRIES,), float(step)))
        reports = self.server.collect(self.sum)
        taken = self.server._counted_step
        self.server.commit(1.0)
        shares = (taken and taken.shares) or (1 / self.workers,)
        for worker, share in zip(reports, shares * len(reports), strict=False):
            self.given[worker] += (self.sum[worker] / share).round()
        self.books.append((self.server.gradient_counts(), len(reports)))
        images = round(sum(report.images for report in reports.values()))
        self.image_books.append((self.server.image_counts(), images))
        with self._changed:
            self._closed = step
            self._changed.notify_all()
        return [*reports]

    def end(self) -> None:
        """The end of the run."""
        self.server.stop()
        self.books.append((self.server.gradient_counts(), 0))
        self.image_books.append((self.server.image_counts(), 0))

    def balanced(self) -> bool:
        """True if the books of gradients and of images balance."""
        return balanced(self.books) and balanced(self.image_books)


def balanced(books: list[tuple[GradientCounts, int]]) -> bool:
    """True if books balance: the gradients asked for are used, late, lost or under way, and `used`
    is right.
    """
    under_way = 0
    for book, used in books:
        if book.used != used:
            return False
        if under_way + book.asked != book.used + book.late + book.lost + book.under_way:
            return False
        under_way = book.under_way
    return True


def kept(memory: Residual) -> Tensor:
    """Returns the residuals of a memory, in the order of the entries."""
    state = memory.state_dict()
    return torch.cat(
        [state.get(name, torch.zeros(shape)).flatten() for name, shape in reversed(PARAMETERS)]
    )
