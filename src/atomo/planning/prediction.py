"""Prediction of a step's time from a profile, costs and a link."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Final, final

from atomo.exchange.parameter_server.frames.relay import piece_entries
from atomo.fusion.flow import Flow, Times
from atomo.fusion.partition import best_partition
from atomo.options.grouping import Grouping
from atomo.planning.costs import Cost, Costs
from atomo.planning.exchanges import EXCHANGES, ExchangePattern, Link
from atomo.planning.rails import HIERARCHICAL, flat_name, rails_done_s
from atomo.planning.step_profile import Profile

__all__ = ["HostModel", "Prediction", "Scenario", "best_step", "break_even", "predict"]

GROUPINGS: Final = (
    *(Grouping(name) for name in ("one", "layer")),
    *(Grouping("count", count) for count in (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)),
    *(Grouping("bytes", megabytes) for megabytes in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)),
)
SLOWEST: Final = 1e3
FASTEST: Final = 1e12  # bytes a second; a break-even is searched between these two
PRECISION: Final = 1.01
HALF: Final = "half "
NO_LINK: Final = Link(math.inf, 0.0)


@final
@dataclass(frozen=True)
class HostModel:
    """The cores of a worker's host, compared with the process that measured."""

    oversubscription: float = 1.0
    """Factor by which all computation takes longer because processes share the cores."""
    slowing: float = 0.0
    """Seconds by which a second of encoding delays the backward pass (`fusion.flow`)."""


@final
@dataclass(frozen=True)
class Scenario:
    """The workers, links and hosts of the steps to predict."""

    profile: Profile
    workers: int  # at least 1
    link: Link  # of each host
    host_model: HostModel = HostModel()  # of each host
    measured: Mapping[str, Link] = field(default_factory=lambda: MappingProxyType({}))
    """Measured links, in the place of `link`: by communicator, and for sums in half precision by
    `HALF` and the communicator.
    """
    per_host: int = 1
    """Workers of each host, which share its link."""
    inside: Link = NO_LINK
    """Link between the workers of a host, for the communicators with the prefix `HIERARCHICAL`."""

    @property
    def compute_s(self) -> float:
        """Seconds of a step's forward and backward pass."""
        return self.host_model.oversubscription * (self.profile.forward_s + self.profile.backward_s)

    def link_of(self, communicator: str, costs: Costs) -> Link:
        """Returns the links as this communicator uses them for gradients of these costs."""
        name = flat_name(communicator)
        key = HALF + name if costs.half else name
        return self.measured.get(key, self.link).at(costs.sent_bytes)

    def over(self, bytes_per_s: float) -> "Scenario":
        """Returns the scenario with links of another bandwidth."""
        links = {
            name: replace(link, bytes_per_s=bytes_per_s, shorter=())
            for name, link in self.measured.items()
        }
        return replace(self, link=replace(self.link, bytes_per_s=bytes_per_s), measured=links)


@final
@dataclass(frozen=True)
class Prediction:
    """The predicted time of one step, and its parts."""

    step_s: float
    grouping: Grouping
    messages: int
    link_s: float
    """Seconds that the busiest link is busy."""
    codec_s: float
    """Seconds that one rank encodes and decodes."""


def predict(
    scenario: Scenario, costs: Costs, communicator: str, grouping: Grouping | None = None
) -> Prediction:
    """Predicts the time of a step.

    Args:
        scenario: the workers and their links.
        costs: of the codec under this communicator.
        communicator: of `EXCHANGES`; with the prefix `HIERARCHICAL` if it has no master.
        grouping: `--fusion`; None: the fastest of `GROUPINGS`.
    """
    flow = flow_of(scenario, costs, communicator)
    sizes = scenario.profile.sizes
    done = partial(finish_s, scenario, communicator, flow)
    best = grouping or min(GROUPINGS, key=lambda grouping: done(grouping.cuts(sizes)))
    cuts = best.cuts(sizes)
    outside_s = outside_exchange_s(scenario, costs, communicator)
    messages = [flow.group(start, stop) for start, stop in pairwise((0, *cuts))]
    saved = burst_gain_s(flow, cuts, scenario.link_of(communicator, costs))
    return Prediction(
        done(cuts) - saved + outside_s,
        best,
        len(cuts),
        sum(times.send for times in messages),
        sum(times.encode + times.decode for times in messages),
    )


@final
@dataclass(frozen=True)
class BestPartition:
    """The best of all partitions into messages."""

    cuts: tuple[int, ...]
    """Number of tensors before the end of each message, from the last parameter to the first."""
    step_s: float


def best_step(scenario: Scenario, costs: Costs, communicator: str) -> BestPartition:
    """Predicts a step with the best of all partitions into messages."""
    flow = flow_of(scenario, costs, communicator)
    done = partial(finish_s, scenario, communicator, flow)
    regular = (grouping.cuts(scenario.profile.sizes) for grouping in GROUPINGS)
    # `best_partition` knows neither rails nor shared cores: it may not be the best here.
    cuts = min((best_partition(flow), *regular), key=done)
    saved = burst_gain_s(flow, cuts, scenario.link_of(communicator, costs))
    outside_s = outside_exchange_s(scenario, costs, communicator)
    return BestPartition(cuts, done(cuts) - saved + outside_s)


def finish_s(scenario: Scenario, communicator: str, flow: Flow, cuts: Sequence[int]) -> float:
    """Returns the seconds from the begin of the backward pass until all messages are decoded."""
    if communicator.startswith(HIERARCHICAL):
        return rails_done_s(flow, scenario.profile.sizes, cuts, scenario.per_host)
    if exchange_of(scenario, communicator).serves:  # the master decodes, on cores of its own
        return flow.done(cuts)
    return max(flow.done(cuts), flow.worked(cuts))


def exchange_of(scenario: Scenario, communicator: str) -> ExchangePattern:
    """Returns the traffic of a communicator."""
    if communicator.startswith(HIERARCHICAL):
        return EXCHANGES[flat_name(communicator)](-(-scenario.workers // scenario.per_host), 1)
    return EXCHANGES[communicator](scenario.workers, scenario.per_host)


def burst_gain_s(flow: Flow, cuts: Sequence[int], link: Link) -> float:
    """Returns the seconds that a step saves because its first bytes go faster."""
    free = replace(
        flow,
        each=tuple(times._replace(send=0.0) for times in flow.each),
        message=flow.message._replace(send=0.0),
    )
    return min(link.saved_s, flow.done(cuts) - free.done(cuts))


def outside_exchange_s(scenario: Scenario, costs: Costs, communicator: str) -> float:
    """Returns the seconds before the backward pass, and after the mean is known."""
    exchange = exchange_of(scenario, communicator)
    crowd, profile = scenario.host_model.oversubscription, scenario.profile
    closing_s = scenario.measured.get("Allgather", scenario.link).latency_s  # the ranks' reports
    after = weights_down_s(scenario, costs, communicator) if exchange.serves else closing_s
    return crowd * (profile.forward_s + profile.update_s) + after


def flow_of(scenario: Scenario, costs: Costs, communicator: str) -> Flow:
    """Builds the flow shop of an exchange."""
    exchange = exchange_of(scenario, communicator)
    crowd, link = scenario.host_model.oversubscription, scenario.link_of(communicator, costs)
    profile, inside = scenario.profile, scenario.inside
    peers = scenario.per_host - 1 if communicator.startswith(HIERARCHICAL) else 0

    def times(cost: Cost, waits: int, dense_s: float) -> Times:
        crossing = exchange.crossings * cost.sent_bytes / link.bytes_per_s
        beside = peers * dense_s
        decoding = crowd * (cost.decode_s * exchange.decodes + beside)
        return Times(crowd * (cost.encode_s + beside), crossing + waits * link.latency_s, decoding)

    message = times(costs.message, costs.rounds * exchange.latencies, inside.latency_s)
    moments = [profile.backward_s] * len(profile.ready_s) if costs.holds else profile.ready_s
    ready = tuple(crowd * moment for moment in moments)
    each = tuple(
        times(cost, 0, size / inside.bytes_per_s)
        for cost, size in zip(costs.each, profile.sizes, strict=True)
    )
    slowing = 1.0 if exchange.encodes_inline else scenario.host_model.slowing
    return Flow(ready, each, message, slowing)


def weights_down_s(scenario: Scenario, costs: Costs, communicator: str) -> float:
    """Returns the seconds from the master's mean to every worker's weights, by `--down auto`.

    Either the weights cross the master's link once, and each worker forwards them to the next. Or,
    if they are fewer bytes, all gradients are forwarded, and every worker decodes them and repeats
    the master's step.
    """
    link, workers = scenario.link_of(communicator, costs), scenario.workers
    weights, gradients = sum(scenario.profile.sizes), workers * costs.sent_bytes
    waiting = workers * link.latency_s
    rested_s = (
        link.rested_bytes / link.bytes_per_s
    )  # the master sends nothing while it receives gradients
    if weights <= gradients:
        # Each worker but the first waits for one piece.
        piece = min(weights, 4 * piece_entries(weights // 4))
        return max(0.0, (weights + (workers - 1) * piece) / link.bytes_per_s - rested_s) + waiting
    repeating = sum(cost.decode_s for cost in costs.each) * workers + scenario.profile.update_s
    going_s = max(0.0, gradients / link.bytes_per_s - rested_s)
    return going_s + scenario.host_model.oversubscription * repeating + waiting


def break_even(scenario: Scenario, costs: Costs, communicator: str, dense: Costs) -> float:
    """Returns the bandwidth, bytes a second, above which a codec gains less than 1 % over `dense`.

    `dense` travels over Allreduce. 0: the codec gains on no link; inf: on every link.
    """

    def pays(bytes_per_s: float) -> bool:
        scaled = scenario.over(bytes_per_s)
        compressed = predict(scaled, costs, communicator)
        return PRECISION * compressed.step_s < predict(scaled, dense, "Allreduce").step_s

    if not pays(SLOWEST):
        return 0.0
    if pays(FASTEST):
        return math.inf
    low, high = SLOWEST, FASTEST
    while high > PRECISION * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low
