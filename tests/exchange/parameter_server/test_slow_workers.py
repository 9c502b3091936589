"""Steps that do not wait for all workers, and the weights of gradients in them."""

import pytest
import torch
from support.harness import together
from support.server_harness import ENTRIES, PARAMETERS, RAW, REPORT, TIMEOUT_S, ServerHarness

from atomo.codecs import make_codec
from atomo.errors import FrameError
from atomo.exchange import Client, Compressor, Server, StepLimits
from atomo.exchange.parameter_server.frames.messages import read_update, update_frame
from atomo.exchange.parameter_server.step_deadline import StepDeadline
from atomo.fusion import plan
from atomo.memory import Residual
from atomo.options.grouping import ONE
from atomo.transports import network


def test_a_step_timeout_goes_on_without_the_slow_and_their_memories_take_back():
    buckets = plan(PARAMETERS, make_codec("fp16"), ONE)
    wires, memory = network(4), Residual()
    server = Server(
        wires[0], buckets, 3, TIMEOUT_S, late_counts=True, limits=StepLimits(step_s=0.001)
    )
    memories = [Residual(), Residual(), memory]
    clients = [
        Client(wire, ENTRIES, Compressor(one, RAW, wire.rank, seed=0), TIMEOUT_S)
        for wire, one in zip(wires[1:], memories, strict=True)
    ]
    out = torch.zeros(ENTRIES)

    def answer(worker: int, value: float) -> int:
        client = clients[worker - 1]
        step = client.pull().step
        client.begin(buckets)
        client.push(buckets[0], torch.full((ENTRIES,), value))
        client.report(REPORT)
        return step

    server.broadcast(1, torch.zeros(ENTRIES))
    assert answer(1, 3.0) == 1
    assert [*server.collect(out)] == [1]
    assert set(out.tolist()) == {1.0}  # 3.0 over three; a late gradient comes in a later step
    server.broadcast(2, torch.zeros(ENTRIES))
    assert (answer(3, 9.0), answer(1, 3.0)) == (1, 2)
    assert 1 in server.collect(out)
    assert clients[2].pull().step == 2
    kept = torch.cat([one.flatten() for one in memory.state_dict().values()])
    assert set(kept.tolist()) == {9.0}


def test_a_worker_that_hangs_holds_up_one_step_and_not_those_after_it():
    """The grace would be longer than anybody waits."""
    harness = ServerHarness(workers=3, needed=2)
    clients = [harness.client(worker) for worker in (1, 2, 3)]

    def answer(step: int) -> None:
        harness.server.broadcast(step, torch.zeros(ENTRIES))
        for worker in (1, 2):
            assert clients[worker - 1].pull().step == step
            harness.answer(clients[worker - 1], worker)

    for step in (1, 2):
        answer(step)  # the third was given step 1, and does nothing
        assert [*harness.server.collect(harness.sum)] == [1, 2]
        assert harness.server.has_busy_workers
        harness.server._deadline = StepDeadline(StepLimits(grace=1e9))
    assert clients[2].pull().step == 1
    harness.answer(clients[2], 3)
    answer(3)
    bodies = [lambda: harness.server.collect(harness.sum), lambda: harness._serves(clients[2], 3)]
    together(bodies, lambda: harness.transports[0].abort(1))
    assert not harness.server.has_busy_workers  # it has caught up


def test_gradients_weigh_by_their_images():
    harness = ServerHarness(workers=3, needed=3)
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    for worker in (1, 2, 3):
        client = harness.client(worker)
        client.pull()
        harness.answer(client, worker)
    harness.server.collect(harness.sum)
    # 13 images: 4 for the first worker, 4 for the second, 5 for the third.
    assert harness.sum[1:4].tolist() == pytest.approx([4 / 13, 4 / 13, 5 / 13])


def test_workers_are_told_what_gradients_weighed():
    for shares in ([], [0.5], [0.25, 0.75]):
        frame = update_frame(7, [1, 3], 0.5, shares)
        assert read_update(frame, 3) == ([1, 3], 0.5, shares)
    with pytest.raises(FrameError, match="an update with factors"):
        read_update(update_frame(7, [1, 3], 0.5, [0.2, 0.2, 0.2]), 3)
