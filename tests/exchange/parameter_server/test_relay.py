"""Weights that workers hand on: in order, piece by piece, and past those that are busy."""

from collections.abc import Callable

import pytest
import torch
from support.harness import together
from torch import Tensor

from atomo.errors import DeadlineExpired, FrameError
from atomo.exchange.parameter_server.frames.messages import RAW
from atomo.exchange.parameter_server.frames.relay import (
    SMALLEST,
    chain_frames,
    forward_frames,
    read_chain,
    read_relay,
    receive_relayed,
    relay_frames,
)
from atomo.exchange.parameter_server.weight_sync import FullSync
from atomo.transports import LocalTransport, network
from atomo.wire import Flag, Header, Kind, pack, read_header

ENTRIES = 3 * SMALLEST + 5
TIMEOUT_S = 600.0  # only a hang takes as long


def handed_on(transport: LocalTransport, entries: int = ENTRIES) -> tuple[Tensor, Flag]:
    """Returns a worker's part."""
    frame = transport.receive(0, TIMEOUT_S, "its place").data
    header = read_header(frame)
    relay = read_relay(frame, transport.rank, transport.size)
    weights = receive_relayed(transport, relay, header.step, entries, TIMEOUT_S)
    return weights, header.flags


def test_all_workers_get_the_weights_and_the_master_sends_them_once():
    transports, weights = network(5), torch.randn(ENTRIES)
    down = FullSync(relays=True)
    down.open(7, weights)
    flags = {1: Flag.NONE, 2: Flag.LATE, 4: Flag.NONE}  # the third is busy
    got: dict[int, tuple[Tensor, Flag]] = {}

    def take(rank: int) -> Callable[[], None]:
        return lambda: got.update({rank: handed_on(transports[rank])})

    def give() -> None:
        for worker, frame in down.commands(flags):
            transports[0].send(worker, frame, "weights")

    together([give, *map(take, flags)])
    assert all(got[rank][0].equal(weights) for rank in flags)
    assert {rank: flag for rank, (_, flag) in got.items()} == flags
    assert [transport.sent_bytes > 0 for transport in transports] == [1, 1, 1, 0, 0]
    assert transports[0].sent_bytes < 1.01 * weights.nbytes


def test_one_worker_alone_gets_them_in_one_message():
    down = FullSync(relays=True)
    down.open(7, torch.zeros(ENTRIES))
    frames = down.commands({3: Flag.NONE})
    assert [(to, read_header(frame).kind) for to, frame in frames] == [(3, Kind.WEIGHTS)]


@pytest.mark.parametrize(
    "places", [[0], [0, 1, 2], [2, 0], [0, 2], [-1, 0], [0, 4], [4, 0]], ids=str
)
def test_places_that_are_none_are_refused(places):
    frame = pack(Header(Kind.RELAY, 1), [torch.tensor(places, dtype=torch.int32)], RAW)
    with pytest.raises(FrameError, match=r"between the ranks|at most"):
        read_relay(frame, 2, 4)


def piece(entries: int = SMALLEST, **header: int) -> "object":
    known = {"kind": Kind.PART, "step": 7, "bucket": 0} | header
    return pack(Header(**known), [torch.zeros(entries)], RAW)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (piece(bucket=1), "a PART 1 of step 7 arrived; piece 0 of the weights of step 7 is due"),
        (piece(step=6), "a PART 0 of step 6 arrived"),
        (piece(kind=Kind.WEIGHTS), "a WEIGHTS 0 of step 7 arrived"),
        (piece(SMALLEST - 1), f"{SMALLEST - 1} weights came; piece 0 has {SMALLEST}"),
        (piece(SMALLEST + 1), "at most"),
    ],
    ids=["another", "earlier", "kind", "short", "long"],
)
def test_a_piece_that_is_not_due_is_refused(frame, message):
    transports = network(3)
    first = relay_frames(7, torch.zeros(ENTRIES), {1: Flag.NONE, 2: Flag.NONE})
    to, place = next(first)
    assert to == 1
    for one in (place, frame):
        transports[0].send(1, one, "weights")
    with pytest.raises(FrameError, match=message):
        handed_on(transports[1])


def test_whoever_hands_nothing_on_is_named_by_who_waits():
    transports = network(3)
    relay = read_relay(dict(relay_frames(7, torch.zeros(9), {1: Flag.NONE, 2: Flag.NONE}))[2], 2, 3)
    assert (relay.source, relay.to) == (1, 0)
    with pytest.raises(DeadlineExpired, match=r"rank 2 waited 0.01 s for .*, from rank 1"):
        receive_relayed(transports[2], relay, 7, 9, 0.01)


def test_frames_go_down_a_chain_unopened_and_in_order():
    transports = network(5)
    frames = [pack(Header(Kind.GRADIENT, 3, 2, number), [torch.ones(9)], RAW) for number in (0, 1)]
    got: dict[int, list[bytes]] = {}

    def take(rank: int) -> None:
        place = transports[rank].receive(0, TIMEOUT_S, "its place").data
        relay, count = read_chain(place, rank, 5)
        handed = forward_frames(transports[rank], relay, count, TIMEOUT_S, "frames")
        got[rank] = [frame.tobytes() for frame in handed]

    for worker, frame in chain_frames(3, [1, 2, 4], frames):
        transports[0].send(worker, frame, "frames")
    together([lambda rank=rank: take(rank) for rank in (1, 2, 4)])
    assert got == {rank: [frame.tobytes() for frame in frames] for rank in (1, 2, 4)}
    assert not transports[3].sent_bytes + transports[4].sent_bytes


@pytest.mark.parametrize("told", [[], [0, 1], [0, 1, 0], [0, 1, -1], [2, 0, 1], [0, 9, 1]], ids=str)
def test_chains_that_are_none_are_refused(told):
    frame = pack(Header(Kind.CHAIN, 1), [torch.tensor(told, dtype=torch.int32)], RAW)
    with pytest.raises(FrameError, match=r"between the ranks|a chain of"):
        read_chain(frame, 2, 4)
