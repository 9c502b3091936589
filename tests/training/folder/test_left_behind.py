"""Whole runs in which workers die: those that are left have the weights that the master has."""

import json
import math
import random
from pathlib import Path

import pytest
import torch
from support.crashing_transport import CrashingTransport
from support.harness import settings, together

from atomo.errors import PeerLost
from atomo.training.job.events import Caution, Ended, Event
from atomo.training.job.job import make_job
from atomo.training.rank import make_end
from atomo.transports import Transport, network

STEPS = 8


def trained(folder: Path, down: str, seed: int, spares: int, net: str = "FC") -> list[Event]:
    """Runs a job on four hosts in which two workers die; returns the events."""
    chosen = settings(
        folder, n=5, network=net, batch_size=8, max_steps=STEPS, eval_freq=3, code="qsgd",
        down=down, min_workers=1, spares=spares,
    )  # fmt: skip
    dice, wires, events = random.Random(seed), network(chosen.processes), list[Event]()
    for wire in wires:
        wire.local_size, wire.local_index = 1, 0  # each on a host of its own: workers hand on
    ends: list[Transport] = [*wires]
    for rank in dice.sample(range(1, chosen.n), 2):
        ends[rank] = CrashingTransport(wires[rank], dice.randint(1, 10 * STEPS))

    def body(transport: Transport) -> None:
        job = make_job(chosen, transport.size)
        end = make_end(job, transport, torch.device("cpu"), events.append, lambda: False)
        try:
            end.run()
        except PeerLost as lost:
            if lost.rank != transport.rank:
                raise

    together([lambda one=one: body(one) for one in ends], lambda: wires[0].abort(1))
    return events


@pytest.mark.long(
    cases=(
        "auto",
        "updates-1",
        "weights",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("down", "seed", "spares"),
    [
        ("updates", 1, 0),
        ("updates", 3, 2),
        ("delta(topk(ratio=0.1))", 2, 1),
        ("auto", 1, 0),
        ("weights", 1, 2),
    ],
)
def test_a_run_over_several_hosts_outlives_its_workers(down, seed, spares, tmp_path):
    events = trained(tmp_path, down, seed, spares)
    notes = [event.text for event in events if isinstance(event, Caution)]
    assert not any("other weights" in note for note in notes), notes
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert (ended.step, ended.reason) == (STEPS, "done")
    lines = [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
    assert all(math.isfinite(line["loss"]) for line in lines)
    names = "asked", "workers", "lost", "images_asked", "images_used", "images_lost"
    total = {name: sum(line[name] for line in lines) for name in names}
    assert total["asked"] == total["workers"] + total["lost"]
    assert total["images_asked"] == total["images_used"] + total["images_lost"]
    deaths = sum("worker" in note and "is gone" in note for note in notes)
    came = sum("takes part from step" in note for note in notes)
    assert lines[-1]["workers"] >= 4 - deaths + came >= 2 + spares
    assert all(line["images_asked"] == 4 * 8 for line in lines)
