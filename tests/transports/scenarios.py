"""Scenarios for every transport, run by three ranks at once: functions of a rank's transport.

Between two scenarios ranks meet at a barrier outside of the transport: one that is ahead would send
into another's silence.
"""

import gc
import os
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from atomo.errors import DeadlineExpired, PeerLost, TransportError
from atomo.transports import Transport
from atomo.transports.base import MAX_MESSAGE_BYTES

PATIENCE_S = 600.0
MANY = 200
LARGE = 50_000_000


def text_of(transport: Transport, source: int | None) -> str:
    return transport.receive(source, PATIENCE_S, "a word").data.tobytes().decode()


def tell(transport: Transport, to: int, text: str) -> None:
    transport.send(to, np.frombuffer(text.encode(), np.uint8), "a word")


def places(transport: Transport) -> None:
    assert (transport.size, transport.local_size) == (3, 3)
    assert transport.local_index == transport.rank


def order(transport: Transport) -> None:
    """Messages between two ranks keep their order, for all sizes."""
    others = [rank for rank in range(3) if rank != transport.rank]
    sizes = [(1, 10, 100_000)[place % 3] for place in range(MANY)]
    for place, size in enumerate(sizes):
        for other in others:
            transport.send(other, np.full(size, place % 251, np.uint8), "a number")
    for source in reversed(others):  # not the order in which they come
        for place, size in enumerate(sizes):
            data = transport.receive(source, PATIENCE_S, "a number").data
            assert data.size == size
            assert (data == place % 251).all()
    transport.drain(PATIENCE_S)


def counters(transport: Transport) -> None:
    before = transport.sent_bytes, transport.received_bytes
    if transport.rank == 0:
        transport.send(1, np.zeros(1234, np.uint8), "zeros")
        transport.send(2, np.zeros(0, np.uint8), "nothing")
        transport.drain(PATIENCE_S)
    else:
        assert transport.receive(0, PATIENCE_S, "them").data.size == (1234, 0)[transport.rank - 1]
    expected = [(1234, 0), (0, 1234), (0, 0)][transport.rank]
    after = transport.sent_bytes, transport.received_bytes
    assert (after[0] - before[0], after[1] - before[1]) == expected


def whichever(transport: Transport) -> None:
    if transport.rank:
        tell(transport, 0, f"I am {transport.rank}")
        return
    messages = [transport.receive(None, PATIENCE_S, "anyone") for _ in range(2)]
    said = {message.source: message.data.tobytes() for message in messages}
    assert said == {1: b"I am 1", 2: b"I am 2"}


def turns(transport: Transport) -> None:
    """A message of another source waits until it is asked for."""
    if transport.rank == 1:
        tell(transport, 0, "first")
        tell(transport, 2, "go on")
    elif transport.rank == 2:
        assert text_of(transport, 1) == "go on"
        tell(transport, 0, "second")
    else:
        assert text_of(transport, 2) == "second"
        assert transport.receive(None, PATIENCE_S, "what waits").source == 1


def own(transport: Transport) -> None:
    """Received data belongs to the receiver, which may change it: no other rank sees the change."""
    if transport.rank == 0:
        data = np.zeros(3, np.uint8)
        for to in (0, 1, 2):
            transport.send(to, data, "zeros")
        transport.receive(0, PATIENCE_S, "zeros").data[:] = 9
        assert [text_of(transport, source) for source in (1, 2)] == ["changed"] * 2
        assert not data.any()
        return
    received = transport.receive(0, PATIENCE_S, "zeros").data
    assert not received.any()
    received[:] = 9
    tell(transport, 0, "changed")


def oneself(transport: Transport) -> None:
    tell(transport, transport.rank, f"I am {transport.rank}")
    assert text_of(transport, transport.rank) == f"I am {transport.rank}"
    transport.drain(PATIENCE_S)


def large(transport: Transport) -> None:
    """Everybody sends before anybody receives: a send must not wait for its receiver."""
    to, source = (transport.rank + 1) % 3, (transport.rank + 2) % 3
    data = np.random.default_rng(transport.rank).integers(0, 256, LARGE, np.uint8)
    transport.send(to, data, "a large message")
    received = transport.receive(source, PATIENCE_S, "a large message").data
    assert (received == np.random.default_rng(source).integers(0, 256, LARGE, np.uint8)).all()
    transport.drain(PATIENCE_S)


def deadline(transport: Transport) -> None:
    for source in (None, (transport.rank + 1) % 3):
        told = rf"rank {transport.rank} waited 0\.05 s for what never comes; see --timeout"
        with pytest.raises(DeadlineExpired, match=told):
            transport.receive(source, 0.05, "what never comes")


def gives_up(transport: Transport) -> None:
    """Rank 1 takes nothing until rank 0 has given up on it, and asks for nothing else meanwhile."""
    if transport.rank == 0:
        transport.send(1, np.zeros(LARGE, np.uint8), "zeros")
        told = r"rank 0 waited 0\.05 s for rank \[1\] to receive messages"
        with pytest.raises(DeadlineExpired, match=told):
            transport.drain(0.05)


def takes(transport: Transport) -> None:
    """Receives a message after its deadline: nothing is lost."""
    if transport.rank == 1:
        assert transport.receive(0, PATIENCE_S, "zeros").data.size == LARGE
    transport.drain(PATIENCE_S)


def beside(transport: Transport) -> None:
    """A message from rank 0 is sent while rank 1 waits for rank 2."""
    if transport.rank == 0:
        transport.send(1, np.zeros(LARGE, np.uint8), "zeros")
        transport.drain(PATIENCE_S)
        tell(transport, 2, "it has left")
    elif transport.rank == 2:
        tell(transport, 1, text_of(transport, 0))
    else:
        assert text_of(transport, 2) == "it has left"
        assert transport.receive(0, PATIENCE_S, "zeros").data.size == LARGE
    transport.drain(PATIENCE_S)


def too_large(transport: Transport) -> None:
    told = r"the weights: 1099511627776 bytes .* at most 1099511627775"
    many = np.broadcast_to(np.zeros(1, np.uint8), MAX_MESSAGE_BYTES + 1)  # of one byte in memory
    with pytest.raises(TransportError, match=told):
        transport.send(0, many, "the weights")


def nobody(transport: Transport) -> None:
    """Sends to a rank that does not exist."""
    for rank in (3, -1):
        told = f"sending a word to rank {rank}: ranks are 0 to 2"
        with pytest.raises(TransportError, match=told):
            transport.send(rank, np.zeros(1, np.uint8), "a word")


Act = Callable[[Transport], None]
SCENARIOS: dict[str, tuple[Act, ...]] = {
    function.__name__: (function,)
    for function in (
        places, order, counters, whichever, turns, own, oneself, large, deadline, beside, too_large,
        nobody,
    )
}  # fmt: skip
SCENARIOS["drain"] = (gives_up, takes)  # ranks meet between acts, too


def abort(transport: Transport) -> None:
    """Takes every rank with it, those too that wait for another one."""
    if transport.rank == 2:
        transport.abort(9)
    transport.receive((transport.rank + 1) % 2, PATIENCE_S, "what never comes")


def lost(transport: Transport) -> None:
    """Rank 2 disappears at once; the others learn of it, for whichever rank they wait."""
    if transport.rank == 2:
        os._exit(0)
    # Rank 1 waits for rank 2 alone, and sends second: a message of its own would be for "any".
    for source in (2, None)[: 2 - transport.rank]:
        with pytest.raises(
            PeerLost, match=r"rank 2 is gone; .* while waiting for a word"
        ) as caught:
            text_of(transport, source)
        assert caught.value.rank == 2
    with pytest.raises(PeerLost, match="rank 2 is gone; it was lost while sending a word"):
        tell(transport, 2, "is there anybody?")
    if transport.rank == 1:
        assert text_of(transport, 0) == "we go on"
    tell(transport, 1 - transport.rank, "we go on")
    if transport.rank == 0:
        assert text_of(transport, 1) == "we go on"


ENDS: dict[str, tuple[Act, ...]] = {
    "abort": (abort,),
    "lost": (lost,),
}  # after which a job is no more


def play(
    names: Sequence[str],
    transport: Transport,
    barrier: Callable[[], object],
) -> None:
    """A rank's part in a job of processes; a failure ends the job with a traceback."""
    gc.freeze()  # the collector skips imported objects, three times, at the end
    try:
        for name in names:
            for act in (SCENARIOS | ENDS)[name]:
                act(transport)
                if name not in ENDS:
                    barrier()
            sys.stdout.write(f"{name}: rank {transport.rank} is content\n")
            sys.stdout.flush()
        transport.drain(PATIENCE_S)
    except BaseException:  # pytest's own failure is no Exception; a rank that just left would hang
        sys.excepthook(*sys.exc_info())
        transport.abort(1)
