"""Bad frames of every codec, in the middle of real steps: each is refused and counted, its sender
is named, the step goes on without it, and its worker takes the gradient back.
"""

from dataclasses import replace

import pytest
import torch
from support.harness import together
from support.lockstep_server import (
    ENTRIES,
    NUMBER_TAMPERINGS,
    PARAMETERS,
    RAW,
    REPORT,
    TAMPERINGS,
    TIMEOUT_S,
    LockstepServer,
    empty,
    flipped,
    replayed,
    tamper,
    truncated,
)  # fmt: skip
from support.selection import long_but, slow_but
from support.tampering_transport import TamperingTransport, unchanged
from torch import Tensor

from atomo.codecs import CODECS, make_codec
from atomo.errors import FrameError, FrameFault, PeerLost
from atomo.exchange import Client, Compressor, GradientCounts, Report, Server
from atomo.exchange.elastic.frames import progress_frame, read_progress
from atomo.exchange.elastic.progress import RankProgress
from atomo.exchange.reports import report_frame, reports_in
from atomo.fusion import plan
from atomo.memory import Residual
from atomo.options.grouping import megabytes
from atomo.transports import Transport, network
from atomo.wire import Bytes, Kind, pack, read_header

QUICK = ("topk",)
# One of each kind of message; natural's has no numbers.
KINDS = (
    "atomo", "countsketch", "fourier", "natural", "onebit", "qsgd", "sgd", "sketchml", "terngrad",
)  # fmt: skip
OTHERS = [code for code in CODECS if code not in QUICK + KINDS]
EVERY = [*slow_but(QUICK, QUICK + KINDS), *long_but((), OTHERS)]


@pytest.mark.long(
    cases=(
        "fourier",
        "sketchml",
        "terngrad",
    )
)
@pytest.mark.parametrize("code", EVERY)
def test_a_bad_frame_costs_one_gradient_and_nothing_else(code):
    lockstep = LockstepServer(code)
    last = len(lockstep.buckets) - 1
    assert last > 0
    # A frame of exponents, as natural's, has no float that could be invalid.
    numbers_in_it = any(one.dtype.is_floating_point for one in lockstep.buckets[last].fields)
    lies = [*TAMPERINGS.items()]
    for number, (lie, why) in enumerate(lies if numbers_in_it else lies[:-NUMBER_TAMPERINGS]):
        tamper(lockstep, lie, at=last)
        assert lockstep.step(2 * number + 1) == [1, 3], lie.__name__
        assert lockstep.sum.equal(lockstep.of(1, 3)), lie.__name__
        note = [one for one in lockstep.server.take_notes() if "refused" in one]
        assert len(note) == 1, (lie.__name__, note)
        assert "a frame of worker 2 is refused, 1 in a row: " in note[0]
        assert lockstep.server.gradient_counts() == GradientCounts(3, 2, 0, 0, 1, 0, ((2, why),)), (
            lie.__name__
        )
        lockstep.tampering.tamper = unchanged
        assert lockstep.step(2 * number + 2) == [1, 2, 3], (
            lie.__name__
        )  # the first message reports it
        assert lockstep.server.gradient_counts() == GradientCounts(3, 3, 0, 0, 0, 1, ()), (
            lie.__name__
        )
        for worker in (1, 2, 3):
            used, kept = lockstep.used[worker - 1], lockstep.kept(worker)
            # Unbiased codecs scale values up, and their rounding with them.
            close = 1e-5 * max(1.0, float(used.abs().max()))
            torch.testing.assert_close(
                used + kept, lockstep.computed[worker - 1], rtol=0.0, atol=close
            )


def test_three_in_a_row_drop_a_worker_and_a_sound_gradient_forgives():
    lockstep = LockstepServer("topk")
    for step, lies in enumerate([True, True, False, True, True, True], 1):
        tamper(lockstep, flipped, 0) if lies else setattr(lockstep.tampering, "tamper", unchanged)
        assert lockstep.step(step) == ([1, 3] if lies else [1, 2, 3])
    told = " ".join(lockstep.server.take_notes())
    assert "worker 2 was killed: 3 of its frames in a row were refused (--max-strikes)" in told
    lockstep.tampering.tamper = unchanged
    with pytest.raises(PeerLost, match="rank 2 is gone"):
        lockstep.tampering.send(0, torch.zeros(1, dtype=torch.uint8).numpy(), "a word")
    assert lockstep.step(7, (1, 3)) == [1, 3]
    assert "worker 2 is gone; 2 of 3 workers continue" in " ".join(lockstep.server.take_notes())
    # It was given step 7, too, before its death was noticed.
    assert lockstep.server.gradient_counts() == GradientCounts(
        21, 15, 0, 1, 0, 5, ((2, FrameFault.DAMAGED),) * 5
    )


def test_whatever_else_comes_behind_a_whole_gradient_does_not_spoil_it():
    lockstep = LockstepServer("qsgd")
    lockstep.tampering.tamper = lambda frame, number: (
        [frame, frame] if read_header(frame).kind is Kind.REPORT else [frame]
    )
    assert lockstep.step(1) == [1, 2, 3]
    lockstep.tampering.tamper = unchanged
    assert lockstep.step(2) == [1, 2, 3]
    assert lockstep.server.gradient_counts() == GradientCounts(
        6, 6, 0, 0, 0, 0, ((2, FrameFault.STALE),)
    )


@pytest.mark.parametrize("lie", [flipped, truncated, empty])
def test_a_gradient_of_which_no_message_can_be_read_is_one_refusal(lie):
    """The master cannot tell whether such a frame was a gradient or a report, so it
    counts frames.
    """
    lockstep = LockstepServer("sgd")
    lockstep.tampering.tamper = lambda frame, number: lie(frame, lockstep.buckets[0])
    assert lockstep.step(1) == [1, 3]
    assert lockstep.step(2) == [1, 3]
    lockstep.tampering.tamper = unchanged
    assert lockstep.step(3) == [1, 2, 3]
    assert lockstep.server.gradient_counts().refusals == ((2, FrameFault.DAMAGED),) * 2


IMPOSSIBLE = (
    ("loss", float("nan")), ("loss", -1e300), ("images", 0.0), ("images", 1e12), ("correct", -1.0),
    ("correct", 3e306), ("correct", 4.0), ("compute_s", 1e308), ("send_s", float("inf")),
    ("wait_s", -1e8), ("square", -1.0), ("square", 1e300), ("ending", 1e9), ("saving", 0.5e9),
)  # fmt: skip


def of_a_report(lockstep: LockstepServer, broken: Report) -> None:
    """Makes the tampering worker send this for its report."""

    def told(frame: Bytes, number: int) -> list[Bytes]:
        header = read_header(frame)
        return [pack(header, [broken.tensor()], RAW)] if header.kind is Kind.REPORT else [frame]

    lockstep.tampering.tamper = told


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_a_report_with_an_impossible_number_is_refused_like_any_frame(name, value):
    lockstep = LockstepServer("sgd")
    of_a_report(lockstep, replace(REPORT, **{name: value}))
    assert lockstep.step(1) == [1, 3]
    lockstep.tampering.tamper = unchanged
    assert lockstep.step(2) == [1, 2, 3]
    assert lockstep.server.gradient_counts() == GradientCounts(
        6, 5, 0, 0, 0, 1, ((2, FrameFault.NUMBERS),)
    )
    assert (lockstep.used[1] + lockstep.kept(2) - lockstep.computed[1]).abs().max() < 1e-5


def test_a_report_of_more_images_than_the_step_has_is_refused():
    lockstep = LockstepServer("sgd", images=9)
    of_a_report(lockstep, replace(REPORT, images=10.0))
    assert lockstep.step(1) == [1, 3]


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_ranks_without_a_master_refuse_the_same_reports(name, value):
    broken = replace(REPORT, **{name: value})
    standing = progress_frame(RankProgress(1, {0: REPORT, 1: broken}), 1, 0)
    for read in (
        lambda: read_progress(standing, 2),
        lambda: [*reports_in([report_frame(1, 0, broken)], 1, [0])],
    ):
        with pytest.raises(FrameError, match=f"a report in which {name} = ") as refused:
            read()
        assert refused.value.fault is FrameFault.NUMBERS


def test_where_all_are_refused_the_step_is_taken_again():
    buckets = plan(PARAMETERS, make_codec("topk"), megabytes(1.0))
    wires = network(2)
    server, tampering = (
        Server(wires[0], buckets, 1, TIMEOUT_S, late_counts=True),
        TamperingTransport(wires[1]),
    )
    tampering.tamper = lambda frame, number: flipped(frame, buckets[0]) if number == 1 else [frame]
    memory = Residual()
    client = Client(tampering, ENTRIES, Compressor(memory, RAW, 1, seed=0), TIMEOUT_S)
    out, steps = torch.zeros(ENTRIES), []

    def work() -> None:
        for _ in range(2):
            steps.append(client.pull().step)
            client.begin(buckets)
            client.push(buckets[0], torch.ones(ENTRIES))
            client.flush()
            client.report(REPORT)

    def lead() -> None:
        server.broadcast(1, torch.zeros(ENTRIES))
        server.collect(out)

    together([lead, work], lambda: wires[0].abort(1))
    assert steps == [1, 1]
    kept = sum(float(one.sum()) for one in memory.state_dict().values())
    assert float(out.sum()) + kept == pytest.approx(2 * ENTRIES)
    assert server.gradient_counts() == GradientCounts(2, 1, 0, 0, 0, 1, ((1, FrameFault.DAMAGED),))


def test_nobody_is_dropped_where_frames_of_all_are_refused():
    """The workers are hardly the cause: other versions, other options, or the master's
    own memory.
    """
    lockstep = LockstepServer("sgd")
    other = plan(PARAMETERS, make_codec("fp16"), megabytes(1e-3))
    lockstep.broadcast(1)

    def work(worker: int) -> None:
        client = lockstep.clients[worker - 1]
        try:
            while client.pull().kind is not Kind.STOP:
                client.begin(other)
                for bucket in other:
                    client.push(bucket, torch.ones(bucket.size))
                client.flush()
                client.report(REPORT)
        except PeerLost:
            pass

    def lead() -> None:
        with pytest.raises(
            FrameError, match=r"frames of all workers that are left \(\[1, 2, 3\]\)"
        ):
            lockstep.server.collect(lockstep.sum)
        lockstep.wires[0].abort(7)

    bodies = [lead] + [lambda w=w: work(w) for w in (1, 2, 3)]
    together(bodies, lambda: lockstep.wires[0].abort(1))
    assert lockstep.server.workers == (1, 2, 3)


def test_a_state_that_is_none_is_asked_for_again():
    lockstep = LockstepServer("sgd")
    assert lockstep.step(1) == [1, 2, 3]
    lies = [flipped, unchanged]
    lockstep.tampering.tamper = lambda frame, number: lies.pop(0)(frame, lockstep.buckets[0])
    states: list[dict[str, Tensor]] = []

    def work(worker: int, times: int) -> None:
        for _ in range(times):
            assert lockstep.clients[worker - 1].pull().kind is Kind.SAVE
            lockstep.clients[worker - 1].send_state({"of": torch.full((2,), float(worker))})

    bodies = [lambda: states.extend(lockstep.server.save())]
    bodies += [lambda w=w: work(w, 1 + (w == 2)) for w in (1, 2, 3)]
    together(bodies, lambda: lockstep.wires[0].abort(1))
    assert [float(one["of"][0]) for one in states] == [1.0, 2.0, 3.0]
    assert lockstep.server.gradient_counts().refusals == ((2, FrameFault.DAMAGED),)


@pytest.mark.parametrize(
    ("lie", "why"), [(flipped, FrameFault.DAMAGED), (replayed, FrameFault.TWICE)]
)
def test_scales_that_are_none_or_asked_for_twice_cost_one_gradient(lie, why):
    buckets = plan(PARAMETERS, make_codec("terngrad(scale=shared)"), megabytes(1.0))
    wires = network(3)
    server, tampering = Server(wires[0], buckets, 2, TIMEOUT_S), TamperingTransport(wires[2])
    tampering.tamper = lambda frame, number: lie(frame, buckets[0]) if number == 1 else [frame]
    counted: list[list[int]] = []

    def work(end: Transport) -> None:
        client = Client(end, ENTRIES, Compressor(Residual(), RAW, end.rank, seed=0), TIMEOUT_S)
        while client.pull().kind is not Kind.STOP:
            client.begin(buckets)
            client.push(buckets[0], torch.ones(ENTRIES))
            client.flush()
            client.report(REPORT)

    def lead() -> None:
        for step in (1, 2):
            server.broadcast(step, torch.zeros(ENTRIES))
            counted.append([*server.collect(torch.zeros(ENTRIES))])
        server.stop()

    together([lead, lambda: work(wires[1]), lambda: work(tampering)], lambda: wires[0].abort(1))
    assert counted == [[1], [1, 2]]
    assert server.gradient_counts().refusals == ((2, why),)
