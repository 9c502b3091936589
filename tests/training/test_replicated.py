"""Runs without a master: equal to runs with one, bit for bit where that is promised."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.harness import largest_difference, plain_sgd, run_threads, settings, together
from support.networks import SMALL, SMALL_MB
from support.selection import slow_but

from atomo.codecs import CODECS, Law, make_codec
from atomo.config.comm_types import REDUCTIONS
from atomo.config.settings import Settings
from atomo.errors import ConfigError, DeadlineExpired, Diverged, FrameError, ReplicasDiffer
from atomo.exchange import Report
from atomo.training.checkpoints.checkpoint import Snapshot, finished, load, steps
from atomo.training.job.events import Event, Started, StepDone
from atomo.training.job.job import make_job
from atomo.training.loop import replicated
from atomo.training.loop.replica import TrainingReplica
from atomo.training.rank import make_end
from atomo.transports import network

FEW = {"svd", "sketchml", "qsgd", "efsignsgd"}  # a family each, beside those below
CPU = torch.device("cpu")


def same(first: Snapshot, second: Snapshot) -> bool:
    """True if weights, optimizer and the workers' states are equal in every bit."""
    pairs = [(first.model, second.model), (first.optimizer, second.optimizer)]
    pairs += zip(first.workers, second.workers, strict=True)
    return all(a.keys() == b.keys() and all(a[n].equal(b[n]) for n in a) for a, b in pairs)


def ended(chosen: Settings) -> Snapshot:
    """Returns the last checkpoint of a run."""
    run_threads(chosen)
    return load(Path(chosen.train_dir), chosen.max_steps)


@pytest.mark.long(
    cases=(
        "ACPSGD-2",
        "Allgather-2",
        "Chunked-2",
        "PowerSGD-2",
    )
)
@pytest.mark.parametrize("workers", slow_but([2], [1, 2, 3]))
@pytest.mark.parametrize("comm_type", REDUCTIONS)
def test_dense_equals_plain_sgd(comm_type, workers, tmp_path):
    chosen = settings(
        tmp_path, n=workers, code="sgd", comm_type=comm_type, batch_size=24 // workers, max_steps=8
    )
    assert largest_difference(plain_sgd(chosen), ended(chosen).model) < 1e-5


CASES = [
    {"code": "svd"},  # damped by its noise
    {"code": "dgc(ratio=0.01)", "fusion_mb": 0.2},  # clips by the norm of the whole gradient
    {"code": "terngrad(scale=shared)", "fusion_mb": 0.2},  # agrees on scales
    {"code": "signsgd", "lr": 0.0005, "momentum": 0.0},  # votes
    {"code": "fp16", "network": "ResNet20", "batch_size": 4, "optimizer": "adam", "lr": 0.001},
    {"code": "topk", "code_schedule": "0: sgd; 0.05: topk(ratio=0.1)"},
]


@pytest.mark.long(
    cases=(
        "{'code': 'fp16'",
        "{'code': 'signsgd'",
        "{'code': 'topk'",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(CASES[:1], CASES), ids=str)
def test_allgather_has_the_bits_of_the_parameter_server(case, tmp_path):
    common = {"max_steps": 4} | case
    served = ended(settings(tmp_path / "served", n=4, **common))
    replicas = ended(settings(tmp_path / "replicas", n=3, comm_type="Allgather", **common))
    assert same(served, replicas)


@pytest.mark.parametrize("code", slow_but(FEW, CODECS))
def test_every_codec_takes_a_step(code, tmp_path):
    run_threads(
        settings(tmp_path, n=2, code=code, comm_type="allgather", network=SMALL, max_steps=1)
    )
    assert steps(tmp_path) == [1]


SUMMABLE = [name for name in CODECS if Law.SUMMABLE in make_codec(name).laws]


@pytest.mark.long(
    cases=(
        "fp16",
        "randk",
    )
)
@pytest.mark.parametrize("code", slow_but({"randk"}, SUMMABLE))
def test_a_sum_of_payloads_is_the_sum_of_gradients(code, tmp_path):
    common = {"n": 3, "code": code, "network": SMALL, "max_steps": 3, "fusion_mb": SMALL_MB}
    gathered = ended(settings(tmp_path / "gathered", comm_type="Allgather", **common))
    added = ended(settings(tmp_path / "added", comm_type="Allreduce", **common))
    assert largest_difference(gathered.model, added.model) < 1e-3 * largest(gathered)


def largest(snapshot: Snapshot) -> float:
    return max(float(tensor.abs().max()) for tensor in snapshot.model.values())


RESUMED = [
    {"n": 2, "comm_type": "Allgather", "code": "svd", "network": "ResNet20", "batch_size": 4},
    {"n": 3, "comm_type": "Allreduce", "code": "bf16", "network": SMALL, "optimizer": "adam",
     "lr": 0.001, "memory": "residual(units=update)", "lr_shrinkage": 0.9, "lr_shrink_freq": 3},
    {"n": 2, "comm_type": "PowerSGD", "svd_rank": 2, "network": SMALL},
    {"n": 2, "comm_type": "ACPSGD", "svd_rank": 2, "network": SMALL,
     "code_schedule": "0: sgd; 0.07: svd(rank=1); 0.13: svd"},
]  # fmt: skip


@pytest.mark.long(cases=("{'n': 2, 'comm_type': 'Allgather'",))
@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(RESUMED[1:2], RESUMED), ids=str)
def test_a_resumed_run_equals_an_uninterrupted_one(case, tmp_path):
    common = {"max_steps": 8, "eval_freq": 4, "fusion_mb": SMALL_MB} | case
    whole = ended(settings(tmp_path / "whole", **common))
    events: list[Event] = []
    stopped = settings(tmp_path / "parts", **common)
    run_threads(stopped, events.append, lambda: len(events) > 4)
    mark = finished(tmp_path / "parts")
    assert mark is not None
    assert (mark.reason, steps(tmp_path / "parts")[-1]) == ("interrupted", mark.step)
    assert mark.step < 8
    assert same(whole, ended(stopped))
    lines = (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 9))


@pytest.mark.slow
def test_it_goes_on_where_a_parameter_server_stopped(tmp_path):
    common = {"code": "dgc", "network": SMALL}
    whole = ended(settings(tmp_path / "whole", n=3, max_steps=8, **common))
    run_threads(settings(tmp_path / "parts", n=3, max_steps=5, **common))
    after = settings(tmp_path / "parts", n=2, max_steps=8, comm_type="Allgather", **common)
    assert same(whole, ended(after))
    longer = settings(tmp_path / "parts", n=4, max_steps=9, comm_type="Allgather", **common)
    assert len(ended(longer).workers) == 4


@pytest.mark.slow
def test_low_rank_factors_do_not_keep_a_run_from_going_on_otherwise(tmp_path):
    common = {"network": SMALL, "code": "svd(rank=2, selection=top)", "memory": "residual"}
    run_threads(settings(tmp_path, n=2, max_steps=2, comm_type="PowerSGD", **common))
    run_threads(settings(tmp_path, n=3, max_steps=4, comm_type="ACPSGD", **common))
    run_threads(settings(tmp_path, n=2, max_steps=6, comm_type="ParameterServer", **common))
    run_threads(settings(tmp_path, n=2, max_steps=8, comm_type="PowerSGD", **common))
    assert steps(tmp_path) == [2, 4, 6, 8]


@pytest.mark.slow
def test_a_finished_run_has_nothing_left_to_do(tmp_path):
    chosen = settings(tmp_path, n=2, network=SMALL, comm_type="Allreduce", code="sgd", max_steps=2)
    run_threads(chosen)
    events: list[Event] = []
    run_threads(chosen, events.append)
    assert not any(isinstance(event, StepDone) for event in events)
    assert steps(tmp_path) == [2]


def test_what_it_says_of_itself(tmp_path):
    events: list[Event] = []
    chosen = settings(tmp_path, n=3, comm_type="Allgather", code="sgd", max_steps=1)
    run_threads(chosen, events.append)
    started, done = events[0], events[1]
    assert isinstance(started, Started)
    assert isinstance(done, StepDone)
    assert (started.workers, started.comm_type, done.workers) == (3, "Allgather", 3)
    # To two others, four bytes an entry; an all-reduce sends two thirds of it to and fro.
    assert done.dense_bytes == pytest.approx(4 * started.parameters * 4 / 3, rel=0.01)
    assert 0.8 * 8 < done.up_bytes / started.parameters < 1.1 * 8
    assert done.down_bytes == pytest.approx(done.up_bytes, rel=0.1)
    assert 0 <= done.hidden_s <= done.exchange_s <= done.step_s


@pytest.mark.slow(cases=("2",))
@pytest.mark.parametrize("odd", [0, 2])
def test_a_rank_whose_weights_are_others_is_named(odd, tmp_path, monkeypatch):
    monkeypatch.setattr(replicated, "COMPARE_EVERY", 3)
    step = TrainingReplica.take_step

    def planted(self: TrainingReplica, *, ending: str, saving: bool) -> object:
        outcome = step(self, ending=ending, saving=saving)
        if self.step == 2 and self._passes.worker == odd + 1:
            self._passes.weights[7] += 1e-6
        return outcome

    monkeypatch.setattr(TrainingReplica, "take_step", planted)
    message = rf"at step 3 rank \[{odd}\] has other weights than rank {1 if odd == 0 else 0}"
    with pytest.raises(ReplicasDiffer, match=message):
        run_threads(settings(tmp_path, n=3, network=SMALL, comm_type="Allgather", code="sgd"))


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_named(tmp_path):
    chosen = settings(tmp_path, n=3, comm_type="Allgather", code="sgd", timeout=2.0)
    ends = [make_end(make_job(chosen, 3), transport, CPU, lambda event: None, lambda: False)
            for transport in network(3)]  # fmt: skip

    def body(rank: int) -> None:
        with pytest.raises(DeadlineExpired, match=r"waited 2 s for bucket 0 of step 1 of rank 2"):
            ends[rank].run()

    together([lambda: body(0), lambda: body(1)])


@pytest.mark.slow(cases=("Allgather",))
@pytest.mark.parametrize("comm_type", ["Allgather", "PowerSGD"])
def test_a_gradient_that_is_not_finite_is_a_run_that_diverges(comm_type, tmp_path):
    chosen = settings(tmp_path, n=2, comm_type=comm_type, code="svd", lr=1e20, max_steps=9)
    with pytest.raises(Diverged, match=r"of worker . at step"):
        run_threads(chosen)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"comm_type": "Allreduce"}, r"those of svd do not add up; give --comm-type Allgather, or"),
        ({"comm_type": "Allreduce"}, r"with payloads that do: sgd, fp16, bf16"),
        (
            {"comm_type": "Allreduce", "code": "sgd", "code_schedule": "0: sgd; 2: topk"},
            r"those of topk do not add up",
        ),
        (
            {"comm_type": "Allgather", "n": 4, "num_aggregate": 3},
            r"--num-aggregate 3: with --comm-type Allgather all 4 processes take every step",
        ),
        (
            {"comm_type": "Allgather", "down": "updates"},
            r"--down updates: with --comm-type Allgather no master sends weights",
        ),
        (
            {"comm_type": "PowerSGD", "code": "topk"},
            r"sends two factors of each matrix, .* not topk; give --svd-rank 4",
        ),
        (
            {"comm_type": "PowerSGD", "svd_rank": 0},
            r"of a rank of 1 or more and as float32, not svd\(rank=0\)",
        ),
        ({"comm_type": "ACPSGD", "code": "sgd", "code_schedule": "2: topk"}, r"not topk; give"),
        (
            {"comm_type": "powersgd", "memory": "none"},
            r"--comm-type powersgd goes with --memory residual or dgc, not none",
        ),
        ({"n": 1}, r"--n must be at least 2, got 1: 1 master and at least 1 worker"),
    ],
)
def test_what_cannot_be_is_refused(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, **changes)


@pytest.mark.slow
def test_a_report_of_more_images_than_the_step_has_ends_the_run(tmp_path, monkeypatch):
    tensor = Report.tensor
    monkeypatch.setattr(Report, "tensor", lambda self: tensor(replace(self, images=1e6)))
    with pytest.raises(
        FrameError, match=r"rank 0 sent a report in which images = 1e\+06, not in 1"
    ):
        run_threads(settings(tmp_path, network=SMALL, comm_type="Allgather", max_steps=1))
