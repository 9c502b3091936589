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
from atomo.grouping import Grouping, cut_at
from atomo.planning import Costs, Setting
from atomo.planning.prediction import flow_of, predict
from atomo.probing import Probed
from atomo.schedule import phases
from atomo.training.found import Found
from atomo.training.job import Job, make_stages, own_codecs
from atomo.training.kept_fusion import find_kept, job_hash
from atomo.training.plan_records import continued
from atomo.training.rehearsal import Contender, join_rehearsal, rehearse
from atomo.training.telling import names_of_hosts
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


def fused(
    draft: Job,
    transport: Transport,
    device: torch.device,
    say: Callable[[str], object] = lambda why: None,
) -> Job:
    """The same job with its messages. All ranks call it together.

    Args:
        draft: of this rank.
        transport: connects the ranks.
        device: where this rank computes.
        say: told, on rank 0, why messages that are known do not serve.

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
        found = rank.found()
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

    def found(self) -> Found | None:
        """Measures, with all others; rank 0 decides what they come to."""
        began = time.perf_counter()
        probed = self.probed()
        if self.transport.rank != FIRST:
            if self.way == TRIED:
                join_rehearsal(self.draft, self.transport, self.device)
            return None
        setting, costs = probed.setting(self.draft.workers), self.costs(probed)
        found = searched(self.draft, self.way, setting, costs)
        if self.way == TRIED:
            plans = partitions(self.draft, setting, costs, found)
            trials = rehearse(self.draft, self.transport, self.device, [*plans.values()])
            found = after_trials(found, plans, trials, flow_of(setting, costs, self.comm_type))
        _, done = continued(self.draft.settings) or (None, 0)
        took_s = time.perf_counter() - began
        return replace(
            found, took_s=took_s, numbers=probed.numbers, hosts=self.hosts, since=done + 1
        )

    def probed(self) -> Probed:
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

    def costs(self, probed: Probed) -> Costs:
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


def searched(job: Job, way: str, setting: Setting, costs: Costs) -> Found:
    """The partition that a way of searching finds from costs, and what it was found for."""
    name = job.settings.comm_type
    flow = flow_of(setting, costs, name)
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
        step_s=predict(setting, costs, name, cut_at(cuts)).step_s,
    )


def partitions(
    job: Job, setting: Setting, costs: Costs, found: Found
) -> dict[tuple[int, ...], Contender]:
    """What was found, and others that are known to do well: by their cuts, the one that promises
    most first.
    """
    entries = tuple(shape.numel() for _, shape in reversed(shapes(job.model)))
    s, code = job.settings, str(main_codec(job))
    flow = flow_of(setting, costs, s.comm_type)
    ways = {TRIED: found.cuts, "mergecomp": within(SEARCHES["mergecomp"](flow), entries, MOST)}
    ways |= {str(way): within(way.cuts(setting.profile.sizes), entries, MOST) for way in OTHERS}
    plans = dict[tuple[int, ...], Contender]()
    for name, cuts in ways.items():
        fusion = str(cut_at(cuts))
        step_s = predict(setting, costs, s.comm_type, cut_at(cuts)).step_s
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
