"""A step's time from a profile, costs and a link."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Final, final

from atomo.communicators.parameter_server.relay import piece_entries
from atomo.fusion.flow import Flow, Times
from atomo.fusion.partition import best_partition
from atomo.grouping import Grouping
from atomo.planning.costs import Cost, Costs
from atomo.planning.exchanges import EXCHANGES, Exchange, Link
from atomo.planning.hosts import INSIDE, done_in_lanes, flat_name
from atomo.planning.profile import Profile

__all__ = ["Machine", "Prediction", "Setting", "best_step", "break_even", "predict"]

GROUPINGS: Final = (
    *(Grouping(name) for name in ("one", "layer")),
    *(Grouping("count", count) for count in (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)),
    *(Grouping("bytes", megabytes) for megabytes in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)),
)
SLOWEST: Final = 1e3
FASTEST: Final = 1e12  # bytes a second, between which a break-even is looked for
PRECISION: Final = 1.01
HALF: Final = "half "
NO_LINK: Final = Link(math.inf, 0.0)


@final
@dataclass(frozen=True)
class Machine:
    """The host of a worker, beside the one that was measured on."""

    crowding: float = 1.0
    """By what everything that computes takes longer, because processes share the cores."""
    slowing: float = 0.0
    """Seconds by which a second of encoding delays the backward pass (`fusion.flow`)."""


@final
@dataclass(frozen=True)
class Setting:
    """Whose steps are predicted."""

    profile: Profile
    workers: int  # at least 1
    link: Link  # of each host
    machine: Machine = Machine()  # of each host
    measured: Mapping[str, Link] = field(default_factory=lambda: MappingProxyType({}))
    """In the place of `link`, as a probe found the links: by communicator, and for sums in half
    precision by `HALF` and that."""
    per_host: int = 1
    """Workers of each host, which share its link."""
    inside: Link = NO_LINK
    """Between the workers of a host, for communicators called `INSIDE` and their name."""

    @property
    def compute_s(self) -> float:
        """A step's forward and backward pass."""
        return self.machine.crowding * (self.profile.forward_s + self.profile.backward_s)

    def link_of(self, communicator: str, costs: Costs) -> Link:
        """The links, as this communicator sends such gradients over them."""
        name = flat_name(communicator)
        way = HALF + name if costs.half else name
        return self.measured.get(way, self.link).at(costs.sent_bytes)

    def over(self, bytes_per_s: float) -> "Setting":
        """The same over links of another bandwidth."""
        links = {
            name: replace(link, bytes_per_s=bytes_per_s, shorter=())
            for name, link in self.measured.items()
        }
        return replace(self, link=replace(self.link, bytes_per_s=bytes_per_s), measured=links)


@final
@dataclass(frozen=True)
class Prediction:
    """One step."""

    step_s: float
    grouping: Grouping
    messages: int
    link_s: float
    """For which the busiest link is busy."""
    codec_s: float
    """For which one rank encodes and decodes."""


def predict(
    setting: Setting, costs: Costs, communicator: str, grouping: Grouping | None = None
) -> Prediction:
    """What a step takes.

    Args:
        setting: the workers and their links.
        costs: of the codec under this communicator.
        communicator: one of `EXCHANGES`, or `INSIDE` and one without a master.
        grouping: `--fusion`; None: whichever of a few is done first.
    """
    flow = flow_of(setting, costs, communicator)
    sizes = setting.profile.sizes
    done = partial(done_at, setting, communicator, flow)
    chosen = grouping or min(GROUPINGS, key=lambda one: done(one.cuts(sizes)))
    cuts = chosen.cuts(sizes)
    around = around_it(setting, costs, communicator)
    messages = [flow.group(start, stop) for start, stop in pairwise((0, *cuts))]
    saved = saved_by_burst(flow, cuts, setting.link_of(communicator, costs))
    return Prediction(
        done(cuts) - saved + around,
        chosen,
        len(cuts),
        sum(times.send for times in messages),
        sum(times.encode + times.decode for times in messages),
    )


@final
@dataclass(frozen=True)
class Best:
    """The best of all partitions into messages."""

    cuts: tuple[int, ...]
    """Tensors by the end of each, from the last parameter to the first."""
    step_s: float


def best_step(setting: Setting, costs: Costs, communicator: str) -> Best:
    """A step with the best of all partitions into messages."""
    flow = flow_of(setting, costs, communicator)
    done = partial(done_at, setting, communicator, flow)
    ways = (way.cuts(setting.profile.sizes) for way in GROUPINGS)
    cuts = min((best_partition(flow), *ways), key=done)  # it knows neither lanes nor cores
    saved = saved_by_burst(flow, cuts, setting.link_of(communicator, costs))
    return Best(cuts, done(cuts) - saved + around_it(setting, costs, communicator))


def done_at(setting: Setting, communicator: str, flow: Flow, cuts: Sequence[int]) -> float:
    """When all is decoded, from the begin of the backward pass."""
    if communicator.startswith(INSIDE):
        return done_in_lanes(flow, setting.profile.sizes, cuts, setting.per_host)
    if exchange_of(setting, communicator).serves:  # the master decodes, on cores of its own
        return flow.done(cuts)
    return max(flow.done(cuts), flow.worked(cuts))


def exchange_of(setting: Setting, communicator: str) -> Exchange:
    """What a communicator makes of a message."""
    if communicator.startswith(INSIDE):
        return EXCHANGES[flat_name(communicator)](-(-setting.workers // setting.per_host), 1)
    return EXCHANGES[communicator](setting.workers, setting.per_host)


def saved_by_burst(flow: Flow, cuts: Sequence[int], link: Link) -> float:
    """Seconds by which a step is done earlier because the first bytes go faster."""
    free = replace(
        flow,
        each=tuple(one._replace(send=0.0) for one in flow.each),
        message=flow.message._replace(send=0.0),
    )
    return min(link.saved_s, flow.done(cuts) - free.done(cuts))


def around_it(setting: Setting, costs: Costs, communicator: str) -> float:
    """Seconds before the backward pass, and after the mean is known."""
    exchange = exchange_of(setting, communicator)
    crowd, profile = setting.machine.crowding, setting.profile
    closing = setting.measured.get("Allgather", setting.link).latency_s  # the ranks' reports
    after = way_down(setting, costs, communicator) if exchange.serves else closing
    return crowd * (profile.forward_s + profile.update_s) + after


def flow_of(setting: Setting, costs: Costs, communicator: str) -> Flow:
    """The flow shop of an exchange."""
    exchange = exchange_of(setting, communicator)
    crowd, link = setting.machine.crowding, setting.link_of(communicator, costs)
    profile, inside = setting.profile, setting.inside
    others = setting.per_host - 1 if communicator.startswith(INSIDE) else 0

    def times(cost: Cost, waits: int, dense_s: float) -> Times:
        crossing = exchange.crossings * cost.sent_bytes / link.bytes_per_s
        beside = others * dense_s
        decoding = crowd * (cost.decode_s * exchange.decodes + beside)
        return Times(crowd * (cost.encode_s + beside), crossing + waits * link.latency_s, decoding)

    message = times(costs.message, costs.rounds * exchange.latencies, inside.latency_s)
    moments = [profile.backward_s] * len(profile.ready_s) if costs.holds else profile.ready_s
    ready = tuple(crowd * moment for moment in moments)
    each = tuple(
        times(one, 0, size / inside.bytes_per_s)
        for one, size in zip(costs.each, profile.sizes, strict=True)
    )
    slowing = 1.0 if exchange.encodes_between else setting.machine.slowing
    return Flow(ready, each, message, slowing)


def way_down(setting: Setting, costs: Costs, communicator: str) -> float:
    """Seconds from the master's mean to every worker's weights, by `--down auto`.

    Weights go through the master's link once, and from worker to worker; or all gradients do, if
    they are fewer bytes, and every worker decodes them and takes the master's step.
    """
    link, workers = setting.link_of(communicator, costs), setting.workers
    weights, gradients = sum(setting.profile.sizes), workers * costs.sent_bytes
    waiting = workers * link.latency_s
    rested_s = link.rested_bytes / link.bytes_per_s  # nothing comes down while gradients go up
    if weights <= gradients:
        piece = min(weights, 4 * piece_entries(weights // 4))  # each but the first waits for one
        return max(0.0, (weights + (workers - 1) * piece) / link.bytes_per_s - rested_s) + waiting
    repeating = sum(one.decode_s for one in costs.each) * workers + setting.profile.update_s
    going_s = max(0.0, gradients / link.bytes_per_s - rested_s)
    return going_s + setting.machine.crowding * repeating + waiting


def break_even(setting: Setting, costs: Costs, communicator: str, dense: Costs) -> float:
    """The bandwidth, bytes a second, above which a codec gains next to nothing over `dense`.

    That is under 1 % of a step, and `dense` travels over Allreduce. 0: it gains on no link; inf: on
    all of them.
    """

    def pays(bytes_per_s: float) -> bool:
        there = setting.over(bytes_per_s)
        ours = predict(there, costs, communicator)
        return PRECISION * ours.step_s < predict(there, dense, "Allreduce").step_s

    if not pays(SLOWEST):
        return 0.0
    if pays(FASTEST):
        return math.inf
    low, high = SLOWEST, FASTEST
    while high > PRECISION * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low
