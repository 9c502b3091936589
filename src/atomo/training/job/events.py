"""Events of a run: records that become lines of JSON, and back."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Final, final

from atomo.config.comm_types import PARAMETER_SERVER

__all__ = [
    "DONE",
    "DRIFTED",
    "EVENTS",
    "INTERRUPTED",
    "Caution",
    "Ended",
    "Event",
    "Failed",
    "Fence",
    "Measuring",
    "Met",
    "ProbedAgain",
    "RankTimes",
    "Saved",
    "Started",
    "StepDone",
    "Storage",
    "from_json",
    "to_json",
]

# Reasons for the end of a sequence of steps.
DONE: Final = "done"
INTERRUPTED: Final = "interrupted"
DRIFTED: Final = "drifted"  # a pause: the ranks measure again, and continue


@final
@dataclass(frozen=True)
class Met:
    """All ranks, spares included, have met; measurements may come before the first step."""


@final
@dataclass(frozen=True)
class Measuring:
    """The ranks begin to measure for a plan, or the run is too short to measure."""

    text: str


@final
@dataclass(frozen=True)
class Started:
    """The ranks have met and the first step is about to begin."""

    network: str
    dataset: str
    code: str
    memory: str
    workers: int
    parameters: int
    images: int  # samples in the training set, of any kind
    steps_per_epoch: int
    first_step: int  # above 1 for a resumed run
    last_step: int
    train_dir: str
    comm_type: str = PARAMETER_SERVER
    samples: str = "images"  # the name of the samples
    chosen: str = ""  # the plan of `--code auto`
    fusion: str = ""  # the plan of `--fusion auto`
    spares: int = 0  # processes that wait to take the place of a worker
    rounds: str = ""  # the rounds of local steps, in words
    nesterov: bool = False  # Nesterov momentum, which some codecs have by default


@final
@dataclass(frozen=True)
class StepDone:
    """A finished step. Times are seconds, means over the workers that counted."""

    step: int
    epoch: float
    loss: float
    accuracy: float  # of the training batch, by the task's definition
    lr: float  # before `damping`
    workers: int  # number of gradients that counted
    images_per_s: float  # samples
    up_bytes: int  # from all workers to the master, as encoded for the transport
    down_bytes: int  # master to workers
    dense_bytes: int  # size in float32 of the gradients that counted
    step_s: float
    compute_s: float
    encode_s: float
    send_s: float
    wait_s: float  # for the weights: the master, other workers, and the transfer of the weights
    decode_s: float
    update_s: float
    eta_s: float
    exchange_s: float = 0.0  # without a master: encoding, sending, waiting and decoding together
    hidden_s: float = 0.0  # the part of `exchange_s` that overlapped the backward pass
    damping: float = 1.0  # factor on the learning rate, by the noise of the codec
    follow_s: float = 0.0  # workers repeat the master's step
    plan_since: int = 1  # the first step with these codecs and messages: `since` in auto.json
    # Gradients, one for each worker and step, since the last step: asked = workers + late + refused
    # + lost + the growth of under_way.
    asked: int = 0  # requested from workers
    late: int = 0  # arrived too late; their workers know it
    lost: int = 0  # lost with a worker that died
    under_way: int = 0  # requested, and not yet received
    # The images of these gradients: asked = used + late + lost, and so on.
    images_asked: int = 0
    images_used: int = 0
    images_late: int = 0
    images_lost: int = 0
    images_refused: int = 0
    images_under_way: int = 0
    refused: int = 0  # with faults; their workers know it
    refused_from: list[int] = field(default_factory=list)  # the rank of each refused frame
    refused_for: list[str] = field(default_factory=list)  # and its fault: an `errors.FrameFault`
    slowest: int = 0  # worker with the longest time from order to report; 0: unknown
    slowness: float = 1.0  # the mean of these times over the median of all workers
    round: int = 0  # of local steps, that ended with this step; 0: none did
    round_steps: int = 0  # its steps; 0 as well
    round_steps_of: list[int] = field(default_factory=list)  # of each process, where they differ
    outer_rate: float = 0.0  # effective rate of the outer optimizer at this correlation
    correlation: float | None = None  # of its mean difference with that of the round before
    storage_failures: int = 0  # attempts to write in the run's folder that failed so far


@final
@dataclass(frozen=True)
class Caution:
    """A message that a user should read once."""

    text: str


@final
@dataclass(frozen=True)
class Saved:
    """A checkpoint is on disk."""

    step: int
    manifest: str


@final
@dataclass(frozen=True)
class RankTimes:
    """Mean seconds of the parts of a step by rank, over the exchanges since the job began."""

    step: int
    rank: list[int]
    compute_s: list[float]
    encode_s: list[float]
    send_s: list[float]
    wait_s: list[float]
    follow_s: list[float]


@final
@dataclass(frozen=True)
class Storage:
    """A kind of file cannot be written any more, or can be written again."""

    what: str  # the kind, a plural, as in "checkpoints"
    works: bool
    failures: int  # attempts that failed since the run began
    text: str  # one line


@final
@dataclass(frozen=True)
class ProbedAgain:
    """The result of another measurement on all ranks, after steps drifted from the prediction."""

    step: int  # the next step
    measured_s: float  # median of the last steps
    expected_s: float  # the prediction before
    stays_s: float  # predicted for the old plan by the new measurements
    step_s: float  # predicted for the plan that is used now
    changed: bool  # True if the plan is new
    took_s: float
    plan: str  # the plan that is used now, in one line or two

    @property
    def text(self) -> str:
        """The result in one line, and the new plan, if any."""
        begin = (
            f"steps take {1e3 * self.measured_s:.1f} ms and not {1e3 * self.expected_s:.1f}, so "
            f"all ranks measured again, in {self.took_s:.1f} s: {1e3 * self.stays_s:.1f} ms "
        )
        if not self.changed:
            return f"{begin}predicted as it is; nothing gains enough on that, and it stays"
        after = f"predicted as it was, {1e3 * self.step_s:.1f} with other codecs or messages"
        return f"{begin}{after}, from step {self.step} on\n{self.plan}"


@final
@dataclass(frozen=True)
class Fence:
    """A request to kill a rank on another host than the master's that does not answer."""

    rank: int
    pid: int  # on its host
    started: int  # ticks from the host's boot to the process's start: numbers are reused
    if_stuck: bool  # kill only a process that is stopped, or waits in a system call


@final
@dataclass(frozen=True)
class Failed:
    """A failed rank, which ends the job; it has printed the reason, and waits to be killed."""

    exit_code: int


@final
@dataclass(frozen=True)
class Ended:
    """The run is over."""

    step: int
    reason: str
    late: int = 0  # gradients under way after the last step, which count in no step
    lost: int = 0
    images_late: int = 0
    images_lost: int = 0
    refused: int = 0
    images_refused: int = 0


Event = (
    Met | Measuring | Started | StepDone | Caution | Saved | RankTimes | Storage | ProbedAgain
    | Fence | Failed | Ended
)  # fmt: skip
KINDS: Final = (
    Met, Measuring, Started, StepDone, Caution, Saved, RankTimes, Storage, ProbedAgain, Fence,
    Failed, Ended,
)  # fmt: skip
EVENTS: Mapping[str, type[Event]] = MappingProxyType({event.__name__: event for event in KINDS})


def to_json(event: Event) -> str:
    """Returns an event as one line."""
    return json.dumps({"event": type(event).__name__} | asdict(event))


def from_json(line: str) -> Event:
    """Reads an event from a line of `to_json`."""
    values = json.loads(line)
    return EVENTS[values.pop("event")](**values)
