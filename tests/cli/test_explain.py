"""`atomo explain` says what a step would take, and whether compression pays."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import parse_page

from atomo.cli import main
from atomo.cli.explanation.options import (
    ExplainOptions,
    codec_reductions,
    communicators_of,
    skipped_communicators,
)
from atomo.config.comm_types import REDUCTIONS
from atomo.planning.rails import HIERARCHICAL

pytestmark = pytest.mark.slow

LENET = ["explain", "--dataset", "Digits", "--network", "FC", "--batch-size", "4"]
QUICK = ["--repetitions", "1", "--svd-rank", "2"]


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*LENET, *QUICK, "--json", "yes", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.long
def test_on_a_slow_link_it_pays_and_on_a_fast_one_it_does_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    html = tmp_path / "page.html"
    slow = explained(
        capsys, "--bandwidth", "1mbit", "--code", "topk(ratio=0.01); fp16", "--html", str(html)
    )
    text = parse_page(html.read_text()).text
    assert "With 1mbit, 50us, compression pays." in text
    assert f"{slow['parameters']:,} parameters" in text
    assert "64 workers: " in text
    assert "All of it: bf16 with --comm-type Allreduce" in text
    assert text.count("Step over bandwidth") == text.count("Step over workers") == 2
    assert slow["compress"] is True
    steps = {(one["code"], one["communicator"]): one for one in slow["steps"]}
    assert steps["topk", "Allgather"]["to_base"] > 5
    assert steps["bf16", "Allreduce"]["to_base"] == 1
    assert {name for _, name in steps} == {
        "Allgather", "Allreduce", "ParameterServer", "PowerSGD", "ACPSGD",
    }  # fmt: skip
    assert "not fp16" in slow["left_out"]["Chunked"]
    for one in slow["steps"]:  # as DistributedDataParallel takes it: all bytes, in MiB
        assert 2**20 * sum(one["bucket_cap_mb_list"]) == 4 * slow["parameters"]
    assert [*steps["topk", "Allgather"]["steps_s"]] == ["8", "64", "1024"]
    times = [one["step_s"] for one in slow["steps"]]
    assert times == sorted(times)
    assert min(times) >= 0
    # Passes are so long that noise in codecs' times is below 2 % of them.
    fast = ["--bandwidth", "100000gbit", "--latency", "0us", "--code", "svd(rank=3)"]
    fast += ["--compute", "10s"]
    assert explained(capsys, *fast)["compress"] is False


def test_each_way_of_training_is_asked_for_flat_and_between_hosts() -> None:
    options = ExplainOptions(code="chunktopk", hierarchical="4", workers=16)
    names = {
        one
        for spec, way in codec_reductions(options)
        for one in communicators_of(options, spec, way)
    }
    assert names == {"ParameterServer", *REDUCTIONS, *(HIERARCHICAL + name for name in REDUCTIONS)}
    assert not skipped_communicators(options)
    few = ExplainOptions(code="topk", svd_rank=0)
    assert {*skipped_communicators(few)} == {"PowerSGD", "ACPSGD", "Chunked"}


@pytest.mark.slow
def test_all_that_training_accepts_is_predicted_flat_and_between_hosts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--hierarchical", "4", "--workers", "16", "--code", "chunktopk"]
    found = explained(capsys, "--bandwidth", "10mbit", *words)
    ways = {(one["communicator"], one["hierarchical"]) for one in found["steps"]}
    assert ways == {("ParameterServer", False)} | {(name, inside) for name in REDUCTIONS
                                         for inside in (False, True)}  # fmt: skip
    assert found["left_out"] == {}
    steps = {(one["code"], one["communicator"], one["hierarchical"]): one
             for one in found["steps"]}  # fmt: skip
    flat, inside = (steps["bf16", "Allreduce", one]["link_s"] for one in (False, True))
    assert flat > 3.5 * inside  # a host's link carries four workers' bytes, or one's


def test_it_answers_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bandwidth", "1mbit", "--code", "topk", "--svd-rank", "0"]
    assert main([*LENET, *QUICK, *words]) == 0
    printed = capsys.readouterr().out
    assert "Fastest: --comm-type Allgather --code 'topk'" in printed
    assert "Without PowerSGD: --comm-type PowerSGD is predicted for svd of --svd-rank" in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bandwidth", "fast"], "--bandwidth 'fast': give a number with one of kbit, mbit, gbit"),
        (["--bandwidth", "0mbit"], "--bandwidth must be above 0"),
        (["--bandwidth", "-1gbit"], "--bandwidth must be above 0, got -1gbit"),
        (["--latency", "-5us"], "--latency must be at least 0, got -5us"),
        (["--svd-rank", "-1"], "--svd-rank must be at least 0, got -1"),
        (["--compute=-1ms"], "--compute must be at least 0, got -1ms"),
        (["--mode=normal"], "unknown option '--mode'; of `atomo train`, in place of the option"),
        (["--latency", "3"], "--latency '3': give a number with one of us, ms, s"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["--code", "topq"], "topq"),
        (["--network", "LeNett"], "LeNet"),
        (["--hierarchical", "yes"], "--hierarchical yes: no job runs whose hosts have names"),
        (["--hierarchical", "4", "--workers", "4"], "give at most 3 for a host"),
        (["--hierarchical", "4", "--probe", "x"], "--hierarchical 4 --probe x: a probe measures"),
        (["--png", "/nowhere/x.png"], "--png"),
        (["--html", "/nowhere/x.html"], "there is no folder /nowhere"),
        (["--html", "x.html", "--local-steps", "30"], "leave one of the two out"),
    ],
)
def test_what_cannot_be_is_named(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main([*LENET, *QUICK, *words]) != 0
    assert said in capsys.readouterr().err


def test_rounds_of_local_steps_have_the_price_of_our_study_and_the_published_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    link = ["--bandwidth", "1mbit", "--compute", "10ms", "--code", "topk", "--workers", "4"]
    document = explained(capsys, *link, "--local-steps", "auto")
    rounds = {(row["code"], row["communicator"]): row for row in document["rounds"]}
    assert rounds["topk", "Allgather"]["needed"] < rounds["sgd", "Allreduce"]["needed"]
    assert all(row["every"] == row["needed"] for row in rounds.values())
    assert main([*LENET, *QUICK, *link, "--local-steps", "32"]) == 0
    text = capsys.readouterr().out
    assert "Shortest rounds: " in text
    assert "published for DiLoCo, not measured here" in text


def test_no_local_steps_are_needed_where_links_keep_up(capsys: pytest.CaptureFixture[str]) -> None:
    link = ["--bandwidth", "100000gbit", "--latency", "0us", "--compute", "10s"]
    assert main([*LENET, *QUICK, *link, "--code", "topk", "--local-steps", "auto"]) == 0
    assert "No local steps are needed: with --comm-type Allreduce" in capsys.readouterr().out
