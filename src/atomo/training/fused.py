"""A job whose messages are cut by measured costs, where `--fusion` asks for that.

Before the first step all ranks measure: their passes, their codec on their own gradients, and the
links among them, in the way in which the run will use them. Rank 0 decides, and tells all others,
so that the partition is the same everywhere. From there on it is `--fusion cuts:...`, which the
folder of the run keeps: who repeats or continues the run has the same messages, and so the same
bits.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch

from atomo.codecs import Codec
from atomo.comm_types import PARAMETER_SERVER
from atomo.communicators.rooted import deal, take
from atomo.fusion import shapes
from atomo.fusion.buckets import MOST
from atomo.fusion.flow import Flow
from atomo.fusion.searches import SEARCHES, within
from atomo.grouping import Grouping, cut_at, megabytes
from atomo.planning import Costs, Scenario
from atomo.planning.prediction import flow_of, predict
from atomo.probing import Probe
from atomo.schedule import phases
from atomo.training.allowance import Allowance, TimeLeft
from atomo.training.found import Found
from atomo.training.job import Job, make_stages, own_codecs
from atomo.training.kept_fusion import find_kept, job_hash, short_hash
from atomo.training.plan_records import continued
from atomo.training.rehearsal import Contender, join_rehearsal, rehearse, time_steps
from atomo.training.telling import hear, names_of_hosts, tell
from atomo.training.trial import probe_job
from atomo.training.trials import Trial
from atomo.transports import Transport

__all__ = ["UNDER_WAY", "fused", "main_codec", "searched", "tensor_codecs"]

CUTS: Final = "cuts"  # in what travels
FIRST: Final = 0  # the rank
REPETITIONS: Final = 2
TRIED: Final = "auto"  # the others are what somebody published: theirs as they found them
OTHERS: Final = (Grouping("one"), Grouping("bytes", 4.0), Grouping("layer"))
UNDER_WAY: Final = 8  # messages
ENTRY_BYTES: Final = 4


def fused(
    draft: Job,
    transport: Transport,
    device: torch.device,
    say: Callable[[str], object] = lambda why: None,
    note: Callable[[str], object] = lambda text: None,
) -> Job:
    """The same job with its messages. All ranks call it together.

    Args:
        draft: of this rank.
        transport: connects the ranks.
        device: where this rank computes.
        say: told, on rank 0, why messages that are known do not serve.
        note: told, on rank 0, how long measuring may take, before it begins.

    Raises:
        CheckpointError: what the folder keeps of the messages cannot be read.
        DeadlineExpired, PeerLost: a rank does not take part.
    """
    settings = draft.settings
    way = settings.grouping
    if not way.searched:
        return draft
    hosts = names_of_hosts(transport, settings.timeout)
    rank = Rank(draft, way.name, transport, device, hosts)
    job = job_hash(draft, way.name)
    kept = find_kept(settings, job, hosts, say) if transport.rank == FIRST else None
    found, cuts = kept, rank.told(kept.cuts if kept else ())
    if not cuts:  # there are none yet
        found = rank.found(note)
        cuts = rank.told(found.cuts if found else ())
    chosen = replace(settings, fusion=str(cut_at(cuts)))
    stages = make_stages(chosen, draft.model, draft.steps_per_epoch)
    return replace(draft, settings=chosen, stages=stages, found=found)


@final
@dataclass(frozen=True)
class Rank:
    """One rank's part in finding the partition."""

    draft: Job
    """A message for each tensor."""
    way: str
    transport: Transport
    device: torch.device
    hosts: tuple[str, ...]

    @property
    def comm_type(self) -> str:
        """The communicator."""
        return self.draft.settings.comm_type

    def told(self, cuts: tuple[int, ...]) -> tuple[int, ...]:
        """What rank 0 says that they are."""
        if self.transport.rank == FIRST:
            deal(self.transport, [{CUTS: torch.tensor(cuts)}] * self.transport.size, 0)
            return cuts
        timeout_s = self.draft.settings.timeout
        return tuple(int(cut) for cut in take(self.transport, timeout_s).state[CUTS])

    def found(self, note: Callable[[str], object]) -> Found | None:
        """Measures, with all others; rank 0 decides what they come to, unless the run is short."""
        began = time.perf_counter()
        allowance, overhead_s = self.allowed()
        if self.way != TRIED or self.agreed(allowance, note):
            found = self.measured(TimeLeft(allowance.limit_s), overhead_s)
        else:
            found = self.unmeasured(allowance)
        if self.transport.rank != FIRST:
            return None
        _, done = continued(self.draft.settings) or (None, 0)
        took_s = time.perf_counter() - began
        return replace(found, took_s=took_s, hosts=self.hosts, since=done + 1)

    def allowed(self) -> tuple[Allowance, float]:
        """Returns the allowance for measuring, on rank 0, and the seconds of a trial beside its
        steps. Steps are timed unless their codecs were chosen just now.
        """
        began, job, s = time.perf_counter(), self.draft, self.draft.settings
        _, done = continued(s) or (None, 0)
        steps, chosen = job.last_step - done, job.chosen
        if chosen and (step_s := job.expected_s or chosen.dense_s):
            return Allowance(step_s, steps, s.auto_share, chosen.took_s), 0.0
        if self.way != TRIED:
            return Allowance(0.0, steps, s.auto_share), 0.0
        if self.transport.rank != FIRST:
            join_rehearsal(job, self.transport, self.device)
            return Allowance(0.0, steps, s.auto_share), 0.0
        plan = Contender("layer", str(main_codec(job)), s.code_for, s.memory, "layer", 0.0)
        step_s, overhead_s = time_steps(job, self.transport, self.device, plan)
        spent_s = time.perf_counter() - began
        return Allowance(step_s, steps, s.auto_share, spent_s), overhead_s

    def agreed(self, allowance: Allowance, note: Callable[[str], object]) -> bool:
        """True if there is time to measure, by what rank 0 knows."""
        timeout_s = self.draft.settings.timeout
        if self.transport.rank != FIRST:
            return bool(hear(self.transport, timeout_s)["measures"])
        if allowance.pays:
            note(f"fusion {self.way}: {allowance.text('messages')}")
        tell(self.transport, {"measures": allowance.pays})
        self.transport.drain(timeout_s)
        return allowance.pays

    def measured(self, left: TimeLeft, overhead_s: float) -> Found:
        """Measures on all ranks and returns the plan; trials count on rank 0 alone."""
        probed = self.probed()
        scenario, costs = probed.scenario(self.draft.workers), self.costs(probed)
        found = searched(self.draft, self.way, scenario, costs)
        if self.way == TRIED and self.transport.rank != FIRST:
            join_rehearsal(self.draft, self.transport, self.device)
        elif self.way == TRIED:
            plans = partitions(self.draft, scenario, costs, found)
            some = [*plans.values()]
            trials = rehearse(self.draft, self.transport, self.device, some, left, overhead_s)
            found = after_trials(found, plans, trials, flow_of(scenario, costs, self.comm_type))
        return replace(found, numbers=probed.numbers)

    def unmeasured(self, allowance: Allowance) -> Found:
        """The messages of the default."""
        sizes = [ENTRY_BYTES * shape.numel() for _, shape in reversed(shapes(self.draft.model))]
        entries = tuple(size // ENTRY_BYTES for size in sizes)
        settings = self.draft.settings
        cuts = within(megabytes(settings.fusion_mb).cuts(sizes), entries, MOST)
        job, why = (
            short_hash(job_hash(self.draft, self.way), settings),
            allowance.refusal("messages"),
        )
        return Found(self.way, cuts, job, 0.0, 0.0, 0.0, 0.0, (), why=why)

    def probed(self) -> Probe:
        """What all ranks find."""
        name = self.draft.settings.comm_type
        # A master has what workers gather.
        reduction = "Allgather" if name == PARAMETER_SERVER else name
        ways = [(codec, reduction) for codec in self.codecs]
        return probe_job(
            self.draft, self.transport, self.device, ways, REPETITIONS, under_way=UNDER_WAY
        )

    @property
    def codecs(self) -> list[Codec[Any]]:
        """All that are measured, the first of them that of most parameters."""
        return [*dict.fromkeys([main_codec(self.draft), *tensor_codecs(self.draft)])]

    def costs(self, probed: Probe) -> Costs:
        """Of an exchange in which each parameter has its codec."""
        costs = dict(zip(self.codecs, (one for _, one in probed.costs), strict=True))
        return joined(costs, tensor_codecs(self.draft))


def main_codec(job: Job) -> Codec[Any]:
    """The codec that serves in the end, of all that has none of its own."""
    return phases(job.settings.code, job.settings.code_schedule)[-1].codec


def tensor_codecs(job: Job) -> list[Codec[Any]]:
    """The codec of each parameter in the end, from the last to the first."""
    tensors = shapes(job.model)
    own = own_codecs(job.settings, tensors)
    return [own.codec(name, main_codec(job)) for name, _ in reversed(tensors)]


def searched(job: Job, way: str, scenario: Scenario, costs: Costs) -> Found:
    """The partition that a way of searching finds from costs, and what it was found for."""
    name = job.settings.comm_type
    flow = flow_of(scenario, costs, name)
    entries = tuple(shape.numel() for _, shape in reversed(shapes(job.model)))
    cuts = within(SEARCHES[way](flow), entries, MOST)
    tensors = len(entries)
    return Found(
        way=way,
        cuts=cuts,
        job=job_hash(job, way),
        exchange_s=flow.done(cuts),
        layers_s=flow.done(range(1, tensors + 1)),
        one_s=flow.done((tensors,)),
        took_s=0.0,
        numbers=(),
        step_s=predict(scenario, costs, name, cut_at(cuts)).step_s,
    )


def partitions(
    job: Job, scenario: Scenario, costs: Costs, found: Found
) -> dict[tuple[int, ...], Contender]:
    """What was found, and others that are known to do well: by their cuts, the one that promises
    most first.
    """
    entries = tuple(shape.numel() for _, shape in reversed(shapes(job.model)))
    s, code = job.settings, str(main_codec(job))
    flow = flow_of(scenario, costs, s.comm_type)
    ways = {TRIED: found.cuts, "mergecomp": within(SEARCHES["mergecomp"](flow), entries, MOST)}
    ways |= {str(way): within(way.cuts(scenario.profile.sizes), entries, MOST) for way in OTHERS}
    plans = dict[tuple[int, ...], Contender]()
    for name, cuts in ways.items():
        fusion = str(cut_at(cuts))
        step_s = predict(scenario, costs, s.comm_type, cut_at(cuts)).step_s
        plans.setdefault(cuts, Contender(name, code, s.code_for, s.memory, fusion, step_s))
    return dict(sorted(plans.items(), key=lambda one: one[1].predicted_s))


def after_trials(
    found: Found,
    plans: dict[tuple[int, ...], Contender],
    trials: tuple[Trial, ...],
    flow: Flow,
) -> Found:
    """The partition that steps were shortest with; where none were taken, the most promising."""
    name = trials[0].name if trials else next(iter(plans.values())).name
    cuts, step_s = next((c, one.predicted_s) for c, one in plans.items() if one.name == name)
    return replace(found, cuts=cuts, exchange_s=flow.done(cuts), step_s=step_s, trials=trials)


def joined(costs: dict[Codec[Any], Costs], codecs: list[Codec[Any]]) -> Costs:
    """Costs in which each tensor has a codec of its own, and a message those of the first."""
    each = tuple(costs[codec].each[place] for place, codec in enumerate(codecs))
    main = next(iter(costs.values()))
    return replace(main, each=each, holds=any(one.holds for one in costs.values()))
