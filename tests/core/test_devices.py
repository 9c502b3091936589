"""Copies between a device and the host, and streams, on a device that is pretended.

Copies to pinned memory are done at the next wait: before it, the memory has none of the data.
"""

from collections.abc import Iterator

import pytest
import torch
from support.fake_device import (
    DEVICE,
    Device,
    StreamModule,
    is_on_device,
    placed,
    use_staging,
    waits,
)

from atomo.core.devices import AsyncScalars, SideStreams, to_device, to_host


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamModule]:
    with Device():
        yield use_staging(monkeypatch)


def test_what_goes_to_a_device_is_not_waited_for():
    tensor = torch.arange(5)
    with waits() as waited:
        there = to_device(tensor, DEVICE)
    assert waited == []
    assert is_on_device(there)
    assert there.held.equal(tensor)
    assert there.held.data_ptr() != tensor.data_ptr()
    assert to_device(there, DEVICE) is there
    assert to_device(tensor, torch.device("cpu")) is tensor


def test_what_comes_from_a_device_is_waited_for_once():
    tensors = [torch.arange(5), torch.randn(3, 2), torch.zeros(0), torch.ones(4, dtype=torch.uint8)]
    with waits() as waited:
        here = to_host([placed(tensors[0]), tensors[1], placed(tensors[2]), placed(tensors[3])])
    assert waited == ["synchronize"]
    assert here[1] is tensors[1]
    for copy, expected in zip(here, tensors, strict=True):
        assert copy.equal(expected)
        assert not is_on_device(copy)


def test_nobody_waits_for_what_is_here():
    with waits() as waited:
        assert to_host([]) == []
        to_host([torch.zeros(2)])
    assert waited == []


def test_a_look_waits_when_it_is_looked_at():
    loss = placed(torch.tensor(1.5))
    with waits() as waited:
        look = AsyncScalars(loss, placed(torch.tensor(3)))
        loss.add_(1)  # what is computed later is not what is seen
        assert waited == []
        assert look.values() == [1.5, 3.0]
    assert waited == ["synchronize"]
    assert AsyncScalars().values() == []
    assert AsyncScalars(torch.tensor(0.1)).values() == [float(torch.tensor(0.1))]


def test_what_runs_beside_follows_what_was_there_when_it_was_asked_for(module: StreamModule):
    main, streams = module.current_stream(), SideStreams()
    place = streams.after_current_stream(DEVICE)
    assert module.current_stream() is main
    with place():
        side = module.current_stream()
        assert side is not main
        assert side.follows == [main]
    again = streams.after_current_stream(DEVICE)
    with again():
        assert module.current_stream() is side  # one behind the other
    assert main.follows == []
    streams.join()
    assert main.follows == [side]


def test_on_the_cpu_nothing_runs_beside(module: StreamModule):
    streams = SideStreams()
    with streams.after_current_stream(torch.device("cpu"))():
        assert module.current_stream() is module.main
    streams.join()
    assert module.main.follows == []
