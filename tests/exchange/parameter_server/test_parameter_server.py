"""The protocol between a master and its workers, step by step, over in-process transports."""

import pytest
import torch
from support.harness import together
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.errors import DeadlineExpired, FrameError
from atomo.exchange import Client, Compressor, Report, Server
from atomo.exchange.state import read_state
from atomo.fusion import plan
from atomo.memory import NoMemory, Residual
from atomo.options.grouping import ONE, megabytes
from atomo.transports import network
from atomo.wire import Bytes, Compression, Header, Kind, pack

PARAMETERS = [("w", Size((4, 3))), ("b", Size((4,)))]
ENTRIES = 16
REPORT = Report(1.0, 2.0, 3.0, 0.1, 0.2, 0.3, 0.4)
RAW = Compression(codec="none")
TIMEOUT_S = 600.0  # only a hang takes as long


class ServerAndWorkers:
    """A server and its clients, run one message at a time from the test's own thread."""

    def __init__(self, workers: int, needed: int, code: str = "sgd", bucket_bytes: int = 10**6):
        self.buckets = plan(PARAMETERS, make_codec(code), megabytes(bucket_bytes / 1e6))
        self.transports = network(workers + 1)
        self.server = Server(self.transports[0], self.buckets, needed, TIMEOUT_S)
        self.memories = [Residual() for _ in range(workers)]
        self.clients = [
            Client(t, ENTRIES, Compressor(m, RAW, t.rank, seed=0), TIMEOUT_S)
            for t, m in zip(self.transports[1:], self.memories, strict=True)
        ]
        self.sum = torch.zeros(ENTRIES)

    def answer(self, worker: int, value: float, order: tuple[int, ...] | None = None) -> None:
        """Sends a worker's gradient of one step: `value` in every entry."""
        client = self.clients[worker - 1]
        client.begin(self.buckets)
        for number in order or range(len(self.buckets)):
            bucket = self.buckets[number]
            client.push(bucket, torch.full((bucket.size,), value))
        client.flush()
        client.report(REPORT)

    def broadcast(self, step: int) -> None:
        self.server.broadcast(step, torch.full((ENTRIES,), float(step)))


def all_equal(tensor: Tensor, value: float) -> bool:
    return bool((tensor == value).all())


def test_a_step_carries_weights_down_and_the_mean_gradient_up():
    cast = ServerAndWorkers(workers=3, needed=3, bucket_bytes=20)
    assert len(cast.buckets) == 2
    cast.broadcast(1)
    for worker in (3, 1, 2):
        order = cast.clients[worker - 1].pull()
        assert (order.kind, order.step) == (Kind.WEIGHTS, 1)
        assert order.weights is not None
        assert all_equal(order.weights, 1.0)
        cast.answer(worker, float(worker))
    reports = cast.server.collect(cast.sum)
    assert list(reports) == [1, 2, 3]
    assert reports[2] == REPORT
    assert all_equal(cast.sum, 2.0)


def test_equal_gradients_give_equal_bits_in_whatever_order_they_arrive():
    sums = []
    for arrival in ((1, 2, 3), (3, 2, 1), (2, 3, 1)):
        cast = ServerAndWorkers(workers=3, needed=3, bucket_bytes=20)
        cast.broadcast(1)
        for client in cast.clients:
            client.pull()
        for worker in arrival:  # 1e8 + 1 - 1e8 depends on the order of additions
            cast.answer(worker, (1e8, 1.0, -1e8)[worker - 1])
        cast.server.collect(cast.sum)
        sums.append(cast.sum)
    assert sums[0].equal(sums[1])
    assert sums[0].equal(sums[2])


def test_a_late_gradient_is_discarded_and_its_worker_told():
    cast = ServerAndWorkers(workers=3, needed=2, code="fp16")
    cast.broadcast(1)
    for client in cast.clients:
        client.pull()
    cast.answer(1, 1.0)
    cast.answer(3, 3.0)
    assert list(cast.server.collect(cast.sum)) == [1, 3]
    assert all_equal(cast.sum, 2.0)
    cast.broadcast(2)
    cast.answer(2, 100.0)  # still of step 1
    for worker in (1, 3):
        cast.clients[worker - 1].pull()
        cast.answer(worker, 5.0)
    assert list(cast.server.collect(cast.sum)) == [1, 3]
    assert all_equal(cast.sum, 5.0)
    order = cast.clients[1].pull()  # the weights of the step that was open at its arrival
    assert order.step == 2
    kept = cast.memories[1].state_dict()
    assert all(all_equal(kept[name], 100.0) for name in ("w", "b"))
    # What it took back goes out with its next gradient.
    cast.broadcast(3)
    cast.answer(2, 1.0)
    cast.broadcast(3)


def test_late_gradients_that_come_back_weigh_what_they_would_in_a_step_of_all():
    """Two workers, one closes a step: a gradient weighs 1/2, and half of a late one waits."""
    buckets = plan(PARAMETERS, make_codec("fp16"), ONE)
    transports, memory = network(3), Residual()
    server = Server(transports[0], buckets, 1, TIMEOUT_S, late_counts=True)
    clients = [
        Client(transports[1], ENTRIES, Compressor(Residual(), RAW, 1, 0, 0.5), TIMEOUT_S),
        Client(transports[2], ENTRIES, Compressor(memory, RAW, 2, 0, 0.5), TIMEOUT_S),
    ]
    out = torch.zeros(ENTRIES)

    def answer(client: Client, value: float) -> None:
        client.begin(buckets)
        client.push(buckets[0], torch.full((ENTRIES,), value))
        client.report(REPORT)

    server.broadcast(1, torch.zeros(ENTRIES))
    for client in clients:
        client.pull()
    answer(clients[0], 3.0)
    server.collect(out)
    assert all_equal(out, 1.5)
    server.broadcast(2, torch.zeros(ENTRIES))
    answer(clients[1], 8.0)  # of step 1: late
    clients[0].pull()
    answer(clients[0], 5.0)
    server.collect(out)
    assert all_equal(out, 2.5)
    clients[1].pull()
    assert all(all_equal(kept, 4.0) for kept in memory.state_dict().values())


def test_a_late_worker_can_still_contribute_to_the_step_that_is_open():
    cast = ServerAndWorkers(workers=2, needed=1)
    cast.broadcast(1)
    for client in cast.clients:
        client.pull()
    cast.answer(1, 1.0)
    cast.server.collect(cast.sum)
    cast.broadcast(2)
    cast.answer(2, 9.0)  # of step 1: late
    cast.clients[0].pull()
    cast.answer(1, 1.0)
    assert list(cast.server.collect(cast.sum)) == [1]  # before it the late gradient was taken in
    assert cast.clients[1].pull().step == 2


def test_states_are_asked_for_once_everybody_is_done():
    cast = ServerAndWorkers(workers=2, needed=1)
    cast.broadcast(1)
    for client in cast.clients:
        client.pull()
    cast.answer(1, 1.0)
    cast.server.collect(cast.sum)
    cast.answer(2, 5.0)

    def worker(number: int) -> None:
        client = cast.clients[number - 1]
        assert client.pull().kind is Kind.SAVE
        client.send_state({"memory/w": torch.full((2,), float(number))})

    states: list[dict[str, Tensor]] = []
    together([lambda: states.extend(cast.server.save()), lambda: worker(1), lambda: worker(2)])
    assert [float(state["memory/w"][0]) for state in states] == [1.0, 2.0]
    cast.server.restore(states)
    for number, client in enumerate(cast.clients, 1):
        order = client.pull()
        assert order.state is not None
        assert all_equal(order.state["memory/w"], float(number))
    cast.server.stop()
    assert [client.pull().kind for client in cast.clients] == [Kind.STOP, Kind.STOP]


def test_a_silent_master_is_named_with_the_step():
    client = Client(network(2)[1], ENTRIES, Compressor(NoMemory(), RAW, 1, seed=0), 0.01)
    with pytest.raises(DeadlineExpired, match=r"rank 1 .*the master's command after step 0"):
        client.pull()


def begun() -> ServerAndWorkers:
    """Returns a step of two workers, of whom the second is complete."""
    cast = ServerAndWorkers(2, 2)
    cast.broadcast(1)
    cast.clients[1].pull()
    cast.answer(2, 3.0)
    return cast


def refused(cast: ServerAndWorkers, frame: Bytes) -> str:
    """Returns the note on a refused frame of the first worker; the step goes on without
    the frame.
    """
    cast.transports[1].send(0, frame, "something wrong")
    assert list(cast.server.collect(cast.sum)) == [2]
    assert all_equal(cast.sum, 3.0)
    (told,) = cast.server.take_notes()
    return told


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (Header(Kind.GRADIENT, 2, 1, 0), "sent step 2; 1 is due"),
        (Header(Kind.GRADIENT, 1, 2, 0), "of worker 2"),
        (Header(Kind.GRADIENT, 1, 1, 9), "bucket 9"),
        (Header(Kind.GRADIENT, 1, 1, 0, layout_hash=5), "same version with the same options"),
        (Header(Kind.REPORT, 1, 1), "after 0 of 1 buckets"),
        (Header(Kind.STOP, 1, 1), "STOP"),
    ],
    ids=str,
)
def test_frames_that_break_the_protocol_are_refused(header, message):
    assert message in refused(begun(), pack(header, [REPORT.tensor()], RAW))


def test_a_gradient_that_does_not_fit_names_its_bucket():
    cast = begun()
    header = Header(Kind.GRADIENT, 1, 1, 0, cast.buckets[0].layout_hash)
    told = refused(cast, pack(header, [torch.ones(11), torch.ones(4)], RAW))
    assert "bucket 0: sgd: 11 values for 12 entries" in told


@pytest.mark.parametrize("entries", [0, 1, ENTRIES - 1])
def test_weights_of_another_size_are_refused_not_stretched(entries):
    cast = ServerAndWorkers(workers=1, needed=1)
    frame = pack(Header(Kind.WEIGHTS, 1), [torch.ones(entries)], RAW)
    cast.transports[0].send(1, frame, "weights")
    with pytest.raises(FrameError, match=f"{entries} weights came; the model has {ENTRIES}"):
        cast.clients[0].pull()


@pytest.mark.parametrize("kind", [Kind.TENSORS, Kind.GRADIENT, Kind.REPORT, Kind.SCALES])
def test_a_worker_does_not_take_for_an_end_what_is_no_order(kind):
    cast = ServerAndWorkers(workers=1, needed=1)
    cast.transports[0].send(1, pack(Header(kind, 1), [], RAW), "no order")
    with pytest.raises(FrameError, match=f"sent a {kind.name}, which is no command"):
        cast.clients[0].pull()


def test_a_report_that_lacks_numbers_is_refused():
    with pytest.raises(FrameError, match=r"a report of shape \(3,\); not \(11,\)"):
        Report.of(torch.ones(3, dtype=torch.float64))


def test_a_state_of_a_dtype_unknown_here_is_refused():
    header = b'{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}'
    data = len(header).to_bytes(8, "little") + header + b"\0"
    section = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    with pytest.raises(FrameError, match="state is damaged"):
        read_state(pack(Header(Kind.STATE), [section], RAW))
