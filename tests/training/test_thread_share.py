"""Threads of ranks that share cores, and of ranks that do not."""

import threading
from functools import partial

import pytest
from support.harness import together

from atomo.training import thread_share
from atomo.transports import Transport, network

PATIENCE_S = 600.0  # only a hang takes as long


def shares(size: int, comm_type: str, spares: int = 0) -> list[int]:
    """Returns each rank's share of the cores, for ranks whose hosts have one name."""
    threads = [0] * size

    def ask(transport: Transport) -> None:
        threads[transport.rank] = thread_share.share_of_cores(
            comm_type, transport, PATIENCE_S, spares
        )

    together([partial(ask, transport) for transport in network(size)])
    return threads


@pytest.fixture
def eight(monkeypatch):
    """Every rank may run on the same eight cores."""
    monkeypatch.setattr(thread_share, "usable_cores", lambda: [*range(8)])


@pytest.mark.parametrize(
    ("size", "comm_type", "threads"),
    [
        (1, "Allgather", 8),
        (2, "Allgather", 4),
        (3, "Allreduce", 2),
        (3, "ParameterServer", 4),  # a master waits while the two workers compute
        (20, "Allgather", 1),
    ],
)
def test_ranks_share_the_cores_that_they_have_in_common(size, comm_type, threads, eight):
    assert shares(size, comm_type) == [threads] * size


def test_those_who_wait_take_no_core(eight):
    assert shares(4, "ParameterServer", spares=1) == [4] * 4


def test_hosts_with_kernels_of_their_own_have_cores_of_their_own(eight, monkeypatch):
    # A host each, so the master's cores are all its own, and no worker gets less for it.
    monkeypatch.setattr(thread_share, "kernel", lambda: threading.current_thread().name)
    assert shares(3, "ParameterServer") == [8, 8, 8]


def test_ranks_that_are_bound_to_cores_of_their_own_take_those(monkeypatch):
    rank_of: dict[int, int] = {}

    def bound() -> list[int]:
        rank = rank_of.setdefault(threading.get_ident(), len(rank_of))
        return [3 * rank, 3 * rank + 1, 3 * rank + 2]

    monkeypatch.setattr(thread_share, "usable_cores", bound)
    assert shares(3, "Allgather") == [3, 3, 3]


def test_virtual_hosts_on_one_machine_share_it_whatever_they_are_called(eight, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: threading.current_thread().name)
    assert shares(4, "Allgather") == [2, 2, 2, 2]
