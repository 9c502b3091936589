"""Spares that wait while others measure: they receive the plan, and join with it."""

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.harness import PATIENCE_S, settings, together

from atomo.fusion import shapes
from atomo.training.job.events import Caution, Ended, Event, StepDone
from atomo.training.job.job import Job, make_job
from atomo.training.job.plan import CodecPlan, Plan, planned_settings
from atomo.training.loop.worker import Worker
from atomo.training.planner import planner
from atomo.training.rank import run_rank
from atomo.training.records.plan_records import keep_plan
from atomo.transports import LocalTransport, network

pytestmark = pytest.mark.usefixtures("short_trials")
CODEC = "topk(ratio=0.1)"
DEFECT = "a planted defect"


@pytest.fixture
def built(monkeypatch) -> dict[str, Job]:
    """Returns the jobs that ranks make, by the names of their threads."""
    jobs: dict[str, Job] = {}
    lock, planned = threading.Lock(), threading.Barrier(3)

    def build(*words: Any) -> Job:
        # Threads share the generator that weights are drawn from, which steps seed as well.
        with lock:
            job = jobs[threading.current_thread().name] = make_job(*words)
        return job

    def build_by_role(*words: Any) -> Job:
        job = build(*words)
        # The spare waits for nobody: its weights are the master's before it steps.
        if threading.current_thread().name != "rank 3":
            planned.wait(PATIENCE_S)
        return job

    monkeypatch.setattr(planner, "make_job", build_by_role)
    return jobs


@pytest.fixture
def second_fails(monkeypatch) -> None:
    """Worker 2 meets a defect of its own at step 2."""
    plain = Worker._take_step

    def planted(self: Worker, step: int, *times: float) -> None:
        if (step, self._transport.rank) == (2, 2):
            raise ValueError(DEFECT)
        plain(self, step, *times)

    monkeypatch.setattr(Worker, "_take_step", planted)


@pytest.mark.slow
def test_a_spare_serves_with_the_codecs_that_the_others_chose(
    built: dict[str, Job], second_fails: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = settings(tmp_path, code="auto", network="FC", n=3, spares=1, threads=1, max_steps=4)
    dense = settings(tmp_path, code="sgd", network="FC", n=3, memory="none")
    tensors = shapes(make_job(dense, dense.n).model)
    codes = {name: CODEC for name, shape in reversed(tensors) if len(shape) > 1}
    keep_plan(
        tmp_path, Plan(CodecPlan(codes, "dgc", 0.1, 0.5, 1.0, 1.0, 0.0, planned_settings(run)))
    )
    events, transports = list[Event](), network(run.processes)

    def body(transport: LocalTransport) -> None:
        threading.current_thread().name = f"rank {transport.rank}"
        try:
            run_rank(run, transport, events.append, lambda: False)
        except ValueError as error:
            assert (transport.rank, str(error)) == (2, DEFECT)  # noqa: PT017  # of a thread

    together([partial(body, transport) for transport in transports], lambda: transports[0].abort(1))
    assert "lost rank 2 (worker), step 2: Traceback" in capfd.readouterr().err
    notes = [event.text for event in events if isinstance(event, Caution)]
    assert "worker 3, a spare, takes part from step 3 on" in notes
    assert [event.workers for event in events if isinstance(event, StepDone)] == [2, 1, 2, 2]
    assert isinstance(events[-1], Ended)
    assert replace(built["rank 3"].settings, spares=0) == built["rank 1"].settings
    assert built["rank 3"].settings.code != "auto"
