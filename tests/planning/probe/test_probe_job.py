"""A probe measures on all ranks, which agree on it to the last bit, and changes nothing."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from atomo.cli.explanation.options import ExplainOptions, codec_reductions
from atomo.cli.probe import measure_communicators
from atomo.errors import ConfigError, DeadlineExpired, TransportError
from atomo.launch.jobs.probes import obtain_probe, run_here, subject_of
from atomo.planning import Link, predict
from atomo.planning.probe import Probe, links, write_probe
from atomo.transports import network

pytestmark = pytest.mark.slow

RANKS = 2
OPTIONS = ExplainOptions(
    network="FC", dataset="Digits", batch_size=4, workers=RANKS, code="topk(ratio=0.01)",
    svd_rank=0, repetitions=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def found() -> list[Probe]:
    """Returns the probe of each rank of a job, ranks being threads."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(RANKS) as pool:
        patch.setattr(links, "LARGEST_BYTES", 200_000)
        patch.setattr(links, "TIMES", 1)
        return [*pool.map(partial(measure_communicators, OPTIONS), network(RANKS))]


def test_all_ranks_agree(found: list[Probe]) -> None:
    first, second = (replace(one, profile=replace(one.profile, gradient={})) for one in found)
    assert first == second


def test_it_has_all_that_a_prediction_takes(found: list[Probe]) -> None:
    one = found[0]
    scenario = one.scenario(RANKS, Link(1.0, 1.0))
    assert {(costs.spec, reduction) for reduction, costs in one.costs} == {
        *codec_reductions(OPTIONS)
    }
    for reduction, costs in one.costs:
        # Of the link as described, a byte a second, nothing is used.
        assert 0 < predict(scenario, costs, reduction).step_s < 60
    assert one.profile.update_s > 0
    assert len(one.profile.ready_s) == len(one.profile.gradient)


def run_of(found: Probe) -> tuple[list[Sequence[str]], Callable[[Sequence[str]], int]]:
    lines: list[Sequence[str]] = []

    def run(line: Sequence[str]) -> int:
        lines.append(line)
        (file,) = (word.partition("=")[2] for word in line if word.startswith("--probe="))
        write_probe(Path(file), subject_of(OPTIONS, RANKS), found)
        return 0

    return lines, run


def test_a_probe_is_taken_once_and_of_something_else_not_at_all(
    found: list[Probe], tmp_path: Path
) -> None:
    asked = replace(OPTIONS, probe=str(tmp_path / "probe.json"))
    lines, run = run_of(found[0])
    ways = [*codec_reductions(OPTIONS)]
    for _ in range(2):
        assert obtain_probe(asked, ways, run).costs == found[0].costs
    (line,) = lines
    assert "probe" in line
    assert "--network=FC" in line
    with pytest.raises(ConfigError, match="is of the batch-size 4, not 8"):
        obtain_probe(replace(asked, batch_size=8), ways)
    with pytest.raises(ConfigError, match="is of the hosts this host, this host, not"):
        obtain_probe(replace(asked, workers=3), ways)
    with pytest.raises(ConfigError, match="lacks qsgd with Allgather"):
        obtain_probe(asked, [("qsgd", "Allgather")])


def test_a_probe_that_failed_is_no_probe(tmp_path: Path) -> None:
    asked = replace(OPTIONS, probe=str(tmp_path / "probe.json"))
    with pytest.raises(TransportError, match="exit code 3 and wrote no"):
        obtain_probe(asked, [], lambda line: 3)


def test_a_probe_that_does_not_end_is_ended() -> None:
    with pytest.raises(DeadlineExpired, match=r"not ended within 0\.1 s, and was ended: sleep 600"):
        run_here(["sleep", "600"], longest_s=0.1)
    assert run_here(["false"]) == 1
