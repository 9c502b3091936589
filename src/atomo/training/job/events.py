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
    "Saved",
    "Started",
    "StepDone",
    "Storage",
    "from_json",
    "to_json",
]

# Why steps come to an end.
DONE: Final = "done"
INTERRUPTED: Final = "interrupted"
DRIFTED: Final = "drifted"  # for a while: the ranks measure again, and go on


@final
@dataclass(frozen=True)
class Met:
    """All ranks, spares among them, are there; what begins may have to be measured first."""


@final
@dataclass(frozen=True)
class Measuring:
    """The ranks are about to measure what serves, or do not since the run is too short."""

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
    images: int  # samples in the training set, whatever they are
    steps_per_epoch: int
    first_step: int  # above 1 where the run continues
    last_step: int
    train_dir: str
    comm_type: str = PARAMETER_SERVER
    samples: str = "images"  # what they are called
    chosen: str = ""  # what `--code auto` came to
    fusion: str = ""  # what was found for `--fusion auto`
    spares: int = 0  # processes that wait to take the place of a worker


@final
@dataclass(frozen=True)
class StepDone:
    """A step was taken. Times are seconds, means over the workers that counted."""

    step: int
    epoch: float
    loss: float
    accuracy: float  # of the training batch, as its task counts what is right
    lr: float  # before `damping`
    workers: int  # whose gradients counted
    images_per_s: float  # samples
    up_bytes: int  # workers to master, all of them, at the socket side of the code
    down_bytes: int  # master to workers
    dense_bytes: int  # what the gradients that counted would have taken as float32
    step_s: float
    compute_s: float
    encode_s: float
    send_s: float
    wait_s: float  # for the weights: for the master, for other workers, and for the way down
    decode_s: float
    update_s: float
    eta_s: float
    exchange_s: float = 0.0  # without a master: encoding, sending, waiting and decoding together
    hidden_s: float = 0.0  # how much of that ran beside the backward pass
    damping: float = 1.0  # factor on the learning rate, by the noise of the codec
    follow_s: float = 0.0  # workers repeat the master's step
    plan_since: int = 1  # the first step with these codecs and messages: `since` in auto.json
    # Gradients, one a worker and step, since the step before: asked = workers + late + refused +
    # lost, and by how many more are under way than there were.
    asked: int = 0  # of workers that were given a step
    late: int = 0  # too late, as their workers were told
    lost: int = 0  # with a worker that died
    under_way: int = 0  # now
    # The images that these gradients are of: asked = used + late + lost, and so on.
    images_asked: int = 0
    images_used: int = 0
    images_late: int = 0
    images_lost: int = 0
    images_refused: int = 0
    images_under_way: int = 0
    refused: int = 0  # not what they should be, as their workers were told
    refused_from: list[int] = field(default_factory=list)  # ranks, one for each frame refused
    refused_for: list[str] = field(default_factory=list)  # and why: an `errors.FrameFault`
    slowest: int = 0  # the worker whose gradients take longest, from order to report; 0: not known
    slowness: float = 1.0  # its mean over the median of those of all workers
    storage_failures: int = 0  # attempts to write in the run's folder that failed so far


@final
@dataclass(frozen=True)
class Caution:
    """Something that a person should look at, once."""

    text: str


@final
@dataclass(frozen=True)
class Saved:
    """A checkpoint is on disk."""

    step: int
    manifest: str


@final
@dataclass(frozen=True)
class Storage:
    """Something can no longer be written, or can be again."""

    what: str  # a plural, as in "checkpoints"
    works: bool
    failures: int  # attempts that failed since the run began
    text: str  # one line


@final
@dataclass(frozen=True)
class ProbedAgain:
    """All ranks measured again, since steps had drifted from what was predicted."""

    step: int  # the one that comes next
    measured_s: float  # the median of the steps before
    expected_s: float  # what they were held against
    stays_s: float  # predicted, by what was measured now, with the codecs and messages so far
    step_s: float  # the same with those that serve now
    changed: bool  # whether these are others
    took_s: float
    plan: str  # what serves now; a line or two

    @property
    def text(self) -> str:
        """One line, and what serves now where that is new."""
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
    """A rank on another host than the master's does not answer, and is to be killed there."""

    rank: int
    pid: int  # on its host
    started: int  # in ticks since that host came up: who has the number later is another
    if_stuck: bool  # only if it is stopped, or waits for the system


@final
@dataclass(frozen=True)
class Failed:
    """A rank cannot go on, and the job with it; it has said why, and waits to be ended."""

    exit_code: int


@final
@dataclass(frozen=True)
class Ended:
    """The run is over."""

    step: int
    reason: str
    late: int = 0  # gradients that were under way after the last step and counted in none
    lost: int = 0
    images_late: int = 0  # theirs
    images_lost: int = 0
    refused: int = 0
    images_refused: int = 0


Event = (
    Met | Measuring | Started | StepDone | Caution | Saved | Storage | ProbedAgain | Fence | Failed
    | Ended
)  # fmt: skip
KINDS: Final = (
    Met, Measuring, Started, StepDone, Caution, Saved, Storage, ProbedAgain, Fence, Failed, Ended
)  # fmt: skip
EVENTS: Mapping[str, type[Event]] = MappingProxyType({event.__name__: event for event in KINDS})


def to_json(event: Event) -> str:
    """Returns an event as one line."""
    return json.dumps({"event": type(event).__name__} | asdict(event))


def from_json(line: str) -> Event:
    """Reads an event from a line of `to_json`."""
    values = json.loads(line)
    return EVENTS[values.pop("event")](**values)
