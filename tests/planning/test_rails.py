"""Several workers on a host: the bytes that cross its link, and the cost of dense sums
inside it.
"""

from itertools import permutations

import numpy as np
import pytest
import torch

from atomo.fusion.flow import Flow, Times
from atomo.options.grouping import ONE, Grouping
from atomo.planning import EXCHANGES, Link, Profile, Scenario, predict
from atomo.planning.costs import Cost, Costs
from atomo.planning.rails import HIERARCHICAL, measure_intra_host_link, rails_done_s

GRADIENT = {"first": torch.ones(100), "second": torch.ones(300)}
PROFILE = Profile(0.5, (1.0, 3.0), 3.0, GRADIENT)
COSTS = Costs("topk", (Cost(0.3, 0.04, 400.0), Cost()), Cost(), 1, holds=False)
LINK = Link(bytes_per_s=1000.0, latency_s=0.05)
BETWEEN = f"{HIERARCHICAL}Allgather"


@pytest.mark.parametrize(("workers", "per_host"), [(4, 1), (8, 4), (12, 3), (4, 4)])
def test_a_link_carries_what_its_hosts_workers_send_to_other_hosts(
    workers: int, per_host: int
) -> None:
    pairs = [(a // per_host, b // per_host) for a, b in permutations(range(workers), 2)]
    leaving = sum(sender == 0 != receiver for sender, receiver in pairs)
    assert EXCHANGES["Allgather"](workers, per_host).crossings == leaving
    assert EXCHANGES["Allreduce"](workers, per_host).crossings == 2 * leaving / workers


def test_between_hosts_it_is_one_worker_a_host_with_dense_sums_before_and_after() -> None:
    inside = Link(bytes_per_s=10_000.0, latency_s=0.01)
    hosts = Scenario(PROFILE, 9, LINK, per_host=3, inside=inside)
    prediction = predict(hosts, COSTS, BETWEEN, ONE)
    dense = 2 * (1600 / 10_000 + 0.01)  # of two others, and to them
    sent, reports = 2 * 400 / 1000 + 0.05, 0.05
    whole = 0.5 + 3 + dense + 0.3 + sent + 3 * 0.04 + dense + reports
    assert prediction.step_s == pytest.approx(whole)
    assert prediction.link_s == pytest.approx(sent)


def test_ranks_of_a_host_encode_beside_each_other() -> None:
    flow = Flow((0.0, 0.0), (Times(3.0, 0.5, 2.0),) * 2, Times(0.0, 0.0, 0.0))
    sizes = (4, 4)
    assert flow.done((1, 2)) == 3 + 3 + 0.5 + 2
    assert rails_done_s(flow, sizes, (1, 2), 2) == 3 + 0.5 + 0.5 + 2
    assert rails_done_s(flow, sizes, (2,), 2) == flow.done((2,))


@pytest.mark.parametrize("slowing", [0.0, 1.0])
def test_one_lane_is_the_flow_shop(slowing: float) -> None:
    draws = np.random.default_rng(1)
    ready = np.cumsum(draws.exponential(1.0, 9)).tolist()
    times = tuple(Times(*row) for row in draws.exponential(1.0, (9, 3)).tolist())
    flow = Flow(tuple(ready), times, Times(0.1, 0.2, 0.3), slowing)
    for cuts in ((9,), (2, 5, 9), tuple(range(1, 10))):
        assert rails_done_s(flow, (1,) * 9, cuts, 1) == pytest.approx(flow.done(cuts))


def test_with_more_lanes_messages_are_done_sooner() -> None:
    costs = Costs("topk", (Cost(1.0, 0.5, 1.0),) * 4, Cost(), 1, holds=False)
    profile = Profile(0.0, (0.0,) * 4, 0.0, {name: torch.ones(10) for name in "abcd"})
    layer = Grouping("layer")
    settings = [Scenario(profile, 4 * n, LINK, per_host=n) for n in (1, 2, 4)]
    times = [predict(setting, costs, BETWEEN, layer).step_s for setting in settings]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1] + 2


def test_a_message_inside_a_host_takes_time_by_itself_and_by_the_byte() -> None:
    link = measure_intra_host_link(2)
    assert 0 < link.latency_s < float("inf")
    assert 0 < link.bytes_per_s < float("inf")
