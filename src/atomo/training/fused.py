"""A job whose messages are cut by measured costs, where `--fusion` asks for that.

Before the first step all ranks measure: their passes, their codec on their own gradients, and the
links among them, in the way in which the run will use them. Rank 0 decides, and tells all others,
so that the partition is the same everywhere. From there on it is `--fusion cuts:...`, which the
folder of the run keeps: who repeats or continues the run has the same messages, and so the same
bits.
"""

import time
from dataclasses import dataclass, replace
from typing import Final, final

import torch

from atomo.communicators.rooted import collect, deal, take
from atomo.fusion import shapes
from atomo.fusion.buckets import MOST
from atomo.fusion.searches import SEARCHES, within
from atomo.grouping import cut_at
from atomo.probing import Probe, agreed, agreed_flow, measure_uplink
from atomo.roles import has_master
from atomo.training.found import Found
from atomo.training.job import Job, make_stages
from atomo.training.kept_fusion import find_kept, job_hash
from atomo.training.measured import measured_alike, measured_by_worker
from atomo.transports import Transport

__all__ = ["fused"]

CUTS, NUMBERS = "cuts", "numbers"  # in what travels
FIRST: Final = 0  # the rank


def fused(draft: Job, transport: Transport, device: torch.device) -> Job:
    """The same job with its messages. All ranks call it together.

    Args:
        draft: of this rank.
        transport: connects the ranks.
        device: where this rank computes.

    Raises:
        CheckpointError: what the folder keeps of the messages cannot be read.
        DeadlineExpired, PeerLost: a rank does not take part.
    """
    settings = draft.settings
    way = settings.grouping
    if not way.searched:
        return draft
    rank = Rank(draft, way.name, transport, device)
    kept = find_kept(settings, job_hash(draft, way.name)) if transport.rank == FIRST else None
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

    @property
    def timeout_s(self) -> float:
        """The longest wait for another rank."""
        return self.draft.settings.timeout

    def told(self, cuts: tuple[int, ...]) -> tuple[int, ...]:
        """What rank 0 says that they are."""
        if self.transport.rank == FIRST:
            deal(self.transport, [{CUTS: torch.tensor(cuts)}] * self.transport.size, 0)
            return cuts
        return tuple(int(cut) for cut in take(self.transport, self.timeout_s).state[CUTS])

    def found(self) -> Found | None:
        """Measures, with all others; rank 0 gets what they come to."""
        began = time.perf_counter()
        numbers = torch.from_numpy(self.measured().numbers())
        what = "the measured costs"
        all_ranks = collect(self.transport, {NUMBERS: numbers}, 0, self.timeout_s, what)
        if not all_ranks:
            return None
        probe = agreed([one[NUMBERS].numpy() for one in all_ranks])
        flow = agreed_flow(probe)
        entries = tuple(shape.numel() for _, shape in reversed(shapes(self.draft.model)))
        cuts = within(SEARCHES[self.way](flow), entries, MOST)
        tensors = len(entries)
        return Found(
            way=self.way,
            cuts=cuts,
            job=job_hash(self.draft, self.way),
            exchange_s=flow.done(cuts),
            layers_s=flow.done(range(1, tensors + 1)),
            one_s=flow.done((tensors,)),
            took_s=time.perf_counter() - began,
            numbers=tuple(float(number) for number in probe.numbers()),
        )

    def measured(self) -> Probe:
        """What this rank finds."""
        settings = self.draft.settings
        if not has_master(settings.comm_type):
            return measured_alike(self.draft, self.transport, self.device)
        if self.transport.rank != FIRST:
            return measured_by_worker(self.draft, self.transport, self.device)
        nothing = Probe.nothing(len(shapes(self.draft.model)))
        return replace(nothing, line=measure_uplink(self.transport, self.timeout_s))
