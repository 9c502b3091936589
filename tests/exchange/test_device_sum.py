"""Dense sums from GPU to GPU, over device channels that the tests replace by queues of CPU
tensors.
"""

from queue import Empty, Queue
from typing import Any, final

import pytest
import torch
from support.draws import normal
from support.harness import PATIENCE_S, settings, together
from torch import Tensor

from atomo.codecs import make_codec
from atomo.codecs.dense_fallback import DENSE
from atomo.errors import ConfigError, DeadlineExpired
from atomo.exchange.collectives.collective import Addend
from atomo.exchange.collectives.direct import Direct
from atomo.training.rank import sums_on_gpus
from atomo.transports import DeviceChannel, LocalTransport, Subgroup, network

RANKS = 3
ENTRIES = (7, 40, 1)  # pieces that are uneven, and some that are empty


@final
class QueueChannel(DeviceChannel):
    """A channel no more lenient than a CUDA-aware MPI: it reads a sent tensor at the end."""

    def __init__(self, rank: int, wires: dict[tuple[int, int, str], "Queue[Tensor]"]) -> None:
        self._rank, self._wires, self.sent = rank, wires, list[tuple[Tensor, Tensor]]()

    def _wire(self, source: int, to: int, label: str) -> "Queue[Tensor]":
        return self._wires.setdefault((source, to, label), Queue())

    def send(self, to: int, values: Tensor, label: str) -> None:
        self.sent.append((values, values.clone()))
        self._wire(self._rank, to, label).put(values)

    def receive(self, source: int, values: Tensor, timeout_s: float, label: str) -> None:
        try:
            values.copy_(self._wire(source, self._rank, label).get(timeout=timeout_s))
        except Empty:
            raise DeadlineExpired(label) from None

    def drain(self, timeout_s: float) -> None:
        for values, was in self.sent:
            assert values.equal(was), "it was changed before it had left"
        self.sent.clear()


def use_queue_channels(
    transports: list[LocalTransport], monkeypatch: pytest.MonkeyPatch
) -> list[QueueChannel]:
    """Gives each transport a device channel."""
    wires: dict[tuple[int, int, str], Queue[Tensor]] = {}
    channels = [QueueChannel(transport.rank, wires) for transport in transports]
    monkeypatch.setattr(LocalTransport, "device_channel", lambda self, device: channels[self.rank])
    return channels


def addends(rank: int, code: str = "") -> list[Addend]:
    carrier = make_codec(code) if code else DENSE
    return [Addend(normal(size, seed=10 * rank + n), carrier) for n, size in enumerate(ENTRIES)]


def summed(transports: list[Any], code: str = "") -> list[list[Tensor]]:
    """Returns the values of all ranks after two sums."""
    given = [addends(one.rank, code) for one in transports]

    def run(transport: Any) -> None:
        collective = Direct(transport, PATIENCE_S)
        for step in (1, 2):
            collective.sum(given[transport.rank], f"bucket 0 of step {step}")

    together([lambda one=one: run(one) for one in transports], lambda: None)
    return [[one.values for one in own] for own in given]


def test_a_sum_has_the_bits_of_one_in_frames_and_sends_none(monkeypatch):
    expected = summed([*network(RANKS)])
    transports = [*network(RANKS)]
    use_queue_channels(transports, monkeypatch)
    for own, other in zip(summed(transports), expected, strict=True):
        for one, two in zip(own, other, strict=True):
            assert one.equal(two)
    assert not any(one.sent_bytes for one in transports)


def test_what_a_carrier_rounds_travels_in_frames(monkeypatch):
    transports = [*network(RANKS)]
    channels = use_queue_channels(transports, monkeypatch)
    summed(transports, "bf16")
    assert all(one.sent_bytes for one in transports)
    assert not any(channel.sent for channel in channels)


def test_a_subgroup_has_its_own_numbers(monkeypatch):
    transports = [*network(4)]
    use_queue_channels(transports, monkeypatch)
    parts = [Subgroup(transports[rank], [1, 3], one_host=True) for rank in (1, 3)]
    one, other = summed(parts)
    assert all(a.equal(b) for a, b in zip(one, other, strict=True))
    assert not any(transport.sent_bytes for transport in transports)


def test_transports_have_no_device_channel_by_default():
    (transport,) = network(1)
    transport.open_device_channels(1.0)
    assert transport.device_channel(torch.device("cuda")) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"cuda_aware_mpi": "No"}, False),
        ({"enable_gpu": "no"}, False),
        ({"comm_type": "ParameterServer"}, False),
    ],
)
def test_a_run_opens_device_channels_where_it_sums_on_gpus(tmp_path, changes, expected):
    given = {"enable_gpu": "yes", "comm_type": "Allreduce", "code": "sgd", "n": 2}
    assert sums_on_gpus(settings(tmp_path, **(given | changes))) is expected


def test_another_word_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cuda-aware-mpi"):
        settings(tmp_path, cuda_aware_mpi="perhaps")
