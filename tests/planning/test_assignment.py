"""The codecs of least predicted time: of all assignments where those can be tried, and dense where
nothing gains."""

import itertools

import numpy as np
import pytest
import torch

from atomo.codecs import make_codec
from atomo.options.grouping import Grouping
from atomo.planning import Link, Profile, Scenario
from atomo.planning.assignment import CodecCandidate, PlanProblem, assign_codecs, assign_one
from atomo.planning.compression_errors import measure_compression_errors
from atomo.planning.costs import Cost, Costs

LAYER = Grouping("layer")
SIZES = (4000, 20000, 400, 9000)


def scenario(bytes_per_s: float) -> Scenario:
    gradient = {str(at): torch.ones(size) for at, size in enumerate(SIZES)}
    return Scenario(Profile(0.1, (0.05, 0.1, 0.2, 0.3), 0.3, gradient), 4, Link(bytes_per_s, 1e-4))


def candidates(seed: int) -> list[CodecCandidate]:
    """Dense, and three that send less and less, take time, and lose something."""
    draw, result = np.random.default_rng(seed), []
    for share, encode, lost in ((1, 0, 0), (0.5, 1e-7, 1e-3), (0.1, 1e-6, 0.2), (0.02, 3e-6, 0.8)):
        costs_of_tensors, errors = [], []
        for size in reversed(SIZES):
            noise = draw.uniform(0.8, 1.2, 3)
            costs_of_tensors.append(
                Cost(float(encode * size * noise[0]), encode * size / 9, 4.0 * size * share)
            )
            errors.append(float(lost * noise[1] * noise[2] * size / sum(SIZES)))
        message = Cost(1e-4, 1e-4, 50.0)
        result.append(
            CodecCandidate(
                Costs(f"{share}", tuple(costs_of_tensors), message, 1, False), tuple(errors)
            )
        )
    return result


@pytest.mark.slow(cases=("0.01",))
@pytest.mark.parametrize("bytes_per_s", [1e5, 1e6, 1e7])
@pytest.mark.parametrize("budget", [0.01, 0.3])
def test_no_assignment_within_the_budget_is_predicted_faster(
    bytes_per_s: float, budget: float
) -> None:
    hosts, codecs = scenario(bytes_per_s), candidates(3)
    assignment = assign_codecs(hosts, codecs, "Allgather", LAYER, budget)
    problem = PlanProblem(hosts, codecs, "Allgather", LAYER)
    assignments = (problem.assignment(picks) for picks in itertools.product(range(4), repeat=4))
    fastest_s = min(row.step_s for row in assignments if row.error <= budget)
    assert assignment.error <= budget
    assert assignment.step_s == pytest.approx(fastest_s, rel=0.01)


def test_a_budget_of_nothing_and_links_without_a_limit_leave_dense_gradients() -> None:
    assert assign_codecs(scenario(1e4), candidates(1), "Allgather", LAYER, 0.0).picks == (
        0,
        0,
        0,
        0,
    )
    assert assign_codecs(scenario(1e12), candidates(1), "ParameterServer", LAYER, 9.0).picks == (
        0,
        0,
        0,
        0,
    )


@pytest.mark.slow
def test_a_greater_budget_is_never_slower_and_always_kept() -> None:
    hosts, codecs = scenario(1e6), candidates(2)
    steps = [
        assign_codecs(hosts, codecs, "ParameterServer", None, budget)
        for budget in (0.0, 0.01, 0.1, 0.5, 1.0)
    ]
    assert all(after.step_s <= before.step_s for before, after in itertools.pairwise(steps))
    assert steps[-1].step_s <= assign_one(hosts, codecs[3], "ParameterServer", None).step_s


def test_errors_of_tensors_add_up_to_that_of_the_gradient() -> None:
    draw = torch.Generator().manual_seed(1)
    gradient = {"a": torch.randn(40, 30, generator=draw), "b": torch.ones(7)}
    top = measure_compression_errors(make_codec("topk(ratio=0.1)"), gradient)
    sent = gradient["a"].flatten().abs().sort().values[-120:].square().sum()
    total = sum(float(tensor.square().sum()) for tensor in gradient.values())
    lost = (float(gradient["a"].square().sum()) - float(sent)) / total
    assert top.errors == (0.0, pytest.approx(lost, rel=1e-5))  # small vectors lose nothing
    assert top.of_mean(4) == top.errors
    assert sum(measure_compression_errors(make_codec("sgd"), gradient).errors) == 0.0


def test_noise_averages_out_over_workers() -> None:
    gradient = {"a": torch.randn(50, 40, generator=torch.Generator().manual_seed(1))}
    noise = measure_compression_errors(make_codec("randk(ratio=0.5)"), gradient)
    assert noise.errors[0] == pytest.approx(1.0, rel=0.1)  # n / k - 1
    assert noise.of_mean(4)[0] == noise.errors[0] / 4
