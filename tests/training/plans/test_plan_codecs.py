"""`--code auto`: all ranks come to the same codecs, which a run that continues finds again."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from support.harness import largest_difference, run_threads, settings, together

from atomo.config.settings import Settings
from atomo.errors import CheckpointError, ConfigError
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.job import make_job
from atomo.training.job.plan import CodecPlan, Plan
from atomo.training.planner.planner import PlanGroup, plan_codecs
from atomo.training.records.plan_records import CODECS_FILE, keep_plan, kept_codecs, moved
from atomo.transports import network

pytestmark = pytest.mark.usefixtures("short_trials")
CODES = {"fc2.weight": "qsgd", "fc1.weight": "svd(rank=8)", "conv2.weight": "qsgd"}
SAID = {"network": "LeNet", "dataset": "Digits", "comm_type": "ParameterServer", "n": 3,
        "batch_size": 32, "error_budget": None}  # fmt: skip
CPU = torch.device("cpu")
CHOSEN = CodecPlan(CODES, "none", 0.05, 0.1, 0.0041, 0.0123, 2.5, SAID)


def choose(
    run: Settings, note: Callable[[str], object] = lambda text: None
) -> list[CodecPlan | None]:
    """Returns the plan of each rank."""
    transports, found = network(run.n), [None] * run.n

    def body(rank: int) -> None:
        group = PlanGroup(transports[rank], CPU, run.timeout, note=note)
        found[rank] = plan_codecs(run, group)

    ranks = range(run.n)
    together([lambda rank=rank: body(rank) for rank in ranks], lambda: transports[0].abort(1))
    return found


@pytest.mark.long(cases=("Allreduce",))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("comm_type", "n"),
    [pytest.param("ParameterServer", 3, marks=pytest.mark.slow), ("Allreduce", 2)],
)
def test_all_ranks_come_to_the_same_codecs_within_the_budget(
    tmp_path: Path, comm_type: str, n: int
) -> None:
    run = settings(tmp_path, code="auto", memory="none", comm_type=comm_type, n=n, error_budget=0.4)
    notes: list[str] = []
    first, *others = choose(run, notes.append)
    assert first is not None
    assert not first.why
    assert len(notes) == 1  # of rank 0
    assert notes[0].startswith("auto: measures codecs for at most 5 min, ")
    assert others == [first] * (n - 1)
    assert first.error <= first.budget == 0.4
    # Real steps may prefer what is predicted to take longer.
    assert first.step_s > 0
    assert first.trials or first.step_s <= first.dense_s
    chosen = first.applied(run)
    assert chosen.resolved() == chosen
    assert make_job(chosen, n).buckets  # every name is one of the network's
    assert set(first.codes) == {"conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight"}


def test_a_run_that_continues_has_the_codecs_that_it_began_with(tmp_path: Path) -> None:
    run = settings(tmp_path, code="auto")
    keep_plan(tmp_path, Plan(CHOSEN))
    assert choose(run) == [CHOSEN] * run.n


def test_plans_of_earlier_versions_serve(tmp_path: Path) -> None:
    """Plans of earlier and of this version name the parameter server by its earlier name."""
    run, lines = settings(tmp_path, code="auto"), list[str]()
    keep_plan(tmp_path, Plan(CHOSEN))
    assert json.loads((tmp_path / CODECS_FILE).read_text())["said"] == SAID | {"comm_type": "Bcast"}
    assert kept_codecs(run, (), lines.append) == CHOSEN
    assert not lines


def test_another_question_has_another_answer(tmp_path: Path) -> None:
    assert not CHOSEN.mismatch(settings(tmp_path, code="auto"))
    for changes in ({"error_budget": 0.5}, {"n": 4}, {"memory": "dgc"}, {"network": "FC"}):
        told = CHOSEN.mismatch(settings(tmp_path, code="auto", **changes))
        (name,) = changes
        assert f"--{name.replace('_', '-')} " in told


def test_what_was_measured_on_other_hosts_does_not_serve_and_a_line_says_so(tmp_path: Path) -> None:
    run, lines = settings(tmp_path, code="auto"), list[str]()
    there = replace(CHOSEN, hosts=("a", "b", "b"))
    keep_plan(tmp_path, Plan(there))
    for hosts in (("a", "b", "b"), ()):
        assert kept_codecs(run, hosts, lines.append) == there
    assert kept_codecs(replace(run, resume="never"), ("c", "b", "b"), lines.append) is None
    assert not lines
    assert kept_codecs(run, ("c", "b", "b"), lines.append) is None
    assert lines == [
        f"{tmp_path / CODECS_FILE} does not serve this job: it was measured on a (1), b (2), and "
        "the ranks are on c (1), b (2) now; codecs are measured and chosen anew"
    ]


def test_which_rank_is_where_matters_of_the_first_alone() -> None:
    assert not moved(("a", "b", "c"), ("a", "c", "b"))
    assert moved(("a", "b", "c"), ("b", "a", "c"))
    assert moved(("a", "a"), ("a", "b"))


def test_gpus_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"\(--enable-gpu yes\): give a --code, such as"):
        Settings(code="auto", enable_gpu="yes").resolved()


def test_the_codecs_are_settings_like_any_other(tmp_path: Path) -> None:
    """`settings.toml` repeats the run."""
    run = CHOSEN.applied(settings(tmp_path, code="auto"))
    assert (run.code, run.memory) == ("qsgd", "none")
    assert run.code_for == "svd(rank=8): fc1.weight"
    assert "2 tensors qsgd, 1 tensor svd(rank=8), memory none: 4.1 ms" in CHOSEN.text


@pytest.mark.slow
def test_a_run_with_several_codecs_that_stops_and_goes_on_has_the_same_bits(tmp_path: Path) -> None:
    codes = {
        "fc1.weight": "topk",
        "fc2.weight": "svd(rank=3, selection=top)",
        "conv2.weight": "bf16",
    }
    chosen = replace(CHOSEN, codes=codes, memory="dgc")
    folders = [tmp_path / "once", tmp_path / "twice"]
    for folder, ends in zip(folders, ([4], [2, 4]), strict=True):
        for end in ends:
            run_threads(chosen.applied(settings(folder, code="auto", max_steps=end)))
    one, other = (load(folder, 4) for folder in folders)
    assert largest_difference(one.model, other.model) == 0
    assert largest_difference(one.workers[0], other.workers[0]) == 0
    assert any(bool(kept.any()) for kept in one.workers[0].values())


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / CODECS_FILE).write_text(json.dumps(asdict(CHOSEN) | {"more": 1}))
    with pytest.raises(CheckpointError, match="remove it"):
        choose(settings(tmp_path, code="auto", n=2))


@pytest.mark.parametrize(
    "changes",
    [{"code_for": "sgd: fc1.weight"}, {"code_schedule": "1: sgd"}, {"comm_type": "PowerSGD"}],
)
def test_what_names_codecs_beside_it_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="--code auto chooses"):
        Settings(code="AUTO", **changes).resolved()
