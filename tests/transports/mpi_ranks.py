"""What the ranks of `test_mpi` do: `mpirun -n 3 python mpi_ranks.py NAME ...`."""

import sys
from collections.abc import Callable

import numpy as np
import pytest

from atomo.errors import DeadlineExpired, TransportError
from atomo.transports.mpi import LARGEST, MPI, MpiTransport, connect

PATIENCE_S = 600.0
MANY = 200
LARGE = 50_000_000


def text_of(transport: MpiTransport, source: int | None) -> str:
    return transport.receive(source, PATIENCE_S, "a word").data.tobytes().decode()


def tell(transport: MpiTransport, to: int, text: str) -> None:
    transport.send(to, np.frombuffer(text.encode(), np.uint8), "a word")


def places(transport: MpiTransport) -> None:
    assert (transport.size, transport.local_size) == (3, 3)
    assert transport.local_index == transport.rank


def order(transport: MpiTransport) -> None:
    """Between any two ranks nothing overtakes anything, whatever its size."""
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


def counters(transport: MpiTransport) -> None:
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


def whichever(transport: MpiTransport) -> None:
    if transport.rank:
        tell(transport, 0, f"I am {transport.rank}")
        return
    messages = [transport.receive(None, PATIENCE_S, "anyone") for _ in range(2)]
    said = {message.source: message.data.tobytes() for message in messages}
    assert said == {1: b"I am 1", 2: b"I am 2"}


def large(transport: MpiTransport) -> None:
    """Everybody sends before anybody receives: a send must not wait for its receiver."""
    to, source = (transport.rank + 1) % 3, (transport.rank + 2) % 3
    data = np.random.default_rng(transport.rank).integers(0, 256, LARGE, np.uint8)
    transport.send(to, data, "a large message")
    received = transport.receive(source, PATIENCE_S, "a large message").data
    assert (received == np.random.default_rng(source).integers(0, 256, LARGE, np.uint8)).all()
    transport.drain(PATIENCE_S)


def deadline(transport: MpiTransport) -> None:
    for source in (None, (transport.rank + 1) % 3):
        told = rf"rank {transport.rank} waited 0\.05 s for what never comes; see --timeout"
        with pytest.raises(DeadlineExpired, match=told):
            transport.receive(source, 0.05, "what never comes")


def drain(transport: MpiTransport) -> None:
    """Rank 1 takes nothing until rank 0 has given up on it, and asks for nothing else meanwhile."""
    if transport.rank == 0:
        transport.send(1, np.zeros(LARGE, np.uint8), "zeros")
        told = r"rank 0 waited 0\.05 s for rank \[1\] to take what was sent"
        with pytest.raises(DeadlineExpired, match=told):
            transport.drain(0.05)
    MPI.COMM_WORLD.Barrier()
    if transport.rank == 1:
        assert transport.receive(0, PATIENCE_S, "zeros").data.size == LARGE
    transport.drain(PATIENCE_S)


def beside(transport: MpiTransport) -> None:
    """While rank 1 waits for rank 2, what rank 0 sends it leaves."""
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


def parts(transport: MpiTransport) -> None:
    """What goes in parts, as between hosts, arrives whole, and nothing overtakes it."""
    whole, transport._part = transport._part, 1000
    sizes = (5000, 1, 999, 1000, 1001, 0, 2000)
    others = [rank for rank in range(3) if rank != transport.rank]
    for size in sizes:
        for other in others:
            transport.send(other, np.arange(size, dtype=np.uint16).view(np.uint8), "numbers")
    for source in reversed(others):
        for size in sizes:
            data = transport.receive(source, PATIENCE_S, "numbers").data
            assert (data.view(np.uint16) == np.arange(size, dtype=np.uint16)).all()
    transport.drain(PATIENCE_S)
    transport._part = whole


def too_large(transport: MpiTransport) -> None:
    told = r"the weights: 2147483648 bytes .* at most 2147483647"
    with pytest.raises(TransportError, match=told):
        transport.send(0, np.empty(LARGEST + 1, np.uint8), "the weights")


def abort(transport: MpiTransport) -> None:
    if transport.rank == 2:
        transport.abort(9)
    transport.receive(2, PATIENCE_S, "what never comes")


def nobody(transport: MpiTransport) -> None:
    """To a rank that there is not."""
    with pytest.raises(TransportError, match="MPI failed while sending a word: MPI_ERR_RANK"):
        transport.send(3, np.zeros(1, np.uint8), "a word")


SCENARIOS: dict[str, Callable[[MpiTransport], None]] = {
    function.__name__: function
    for function in (
        places,
        order,
        counters,
        whichever,
        large,
        deadline,
        drain,
        beside,
        parts,
        too_large,
        nobody,
    )
}


def main(names: list[str]) -> None:
    """Plays scenarios; a failure ends the job with a traceback."""
    transport = connect()
    try:
        for name in names:
            (SCENARIOS | {"abort": abort})[name](transport)
            sys.stdout.write(f"{name}: rank {transport.rank} is content\n")
            sys.stdout.flush()
            MPI.COMM_WORLD.Barrier()  # who goes on first would send into a scenario of silence
        transport.drain(PATIENCE_S)
    except BaseException:  # pytest's own failure is no Exception; a rank that just left would hang
        sys.excepthook(*sys.exc_info())
        transport.abort(1)


if __name__ == "__main__":
    main(sys.argv[1:])
