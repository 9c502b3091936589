"""The calls of MPI for tensors on a device, as a stand-in for its communicator sees them."""

from typing import Any, final

import pytest
import torch
from support.fake_device import Device, placed, use_staging, waits
from torch import Tensor

from atomo.errors import DeadlineExpired
from atomo.transports.mpi import device_channel
from atomo.transports.mpi.device_channel import MpiDeviceChannel


@final
class Request:
    """Done once it was looked at so often."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def Test(self) -> bool:  # noqa: N802  # as mpi4py has it
        self._looks -= 1
        return self._looks < 0


@final
class World:
    """A communicator that records its arguments."""

    rank = 0

    def __init__(self, looks: int = 2) -> None:
        self.handed: list[tuple[str, Tensor, int, int]] = []
        self._looks = looks

    def Isend(self, buf: Any, dest: int, tag: int) -> Request:  # noqa: N802
        self.handed.append(("send", buf[0], dest, tag))
        return Request(self._looks)

    def Irecv(self, buf: Any, source: int, tag: int) -> Request:  # noqa: N802
        self.handed.append(("receive", buf[0], source, tag))
        return Request(self._looks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_memory_itself_is_handed_over(dtype):
    world, values = World(), torch.arange(6).to(dtype)
    lane = MpiDeviceChannel(world)
    lane.send(1, values, "x")
    lane.receive(2, values, 5.0, "x")
    lane.drain(5.0)
    for _, given, _, tag in world.handed:
        assert given.dtype == torch.uint8
        assert given.data_ptr() == values.data_ptr()
        assert given.nbytes == values.nbytes
        assert 0 <= tag < 2**15
    assert [one[2] for one in world.handed] == [1, 2]
    assert world.handed[0][3] == world.handed[1][3]


def test_what_is_yet_to_be_computed_is_waited_for_before_it_is_sent(monkeypatch):
    module = use_staging(monkeypatch)
    monkeypatch.setattr(device_channel, "module_of", lambda device: module)
    with Device(), waits() as heard:
        MpiDeviceChannel(World()).send(1, placed(torch.zeros(3)), "x")
    assert heard == ["synchronize"]


def test_who_does_not_come_is_named():
    lane = MpiDeviceChannel(World(looks=10**9))
    with pytest.raises(DeadlineExpired, match="for the sum of rank 3"):
        lane.receive(3, torch.zeros(2), 0.0, "the sum")
    lane.send(1, torch.zeros(2), "x")
    with pytest.raises(DeadlineExpired, match="for other ranks to receive tensors"):
        lane.drain(0.0)
