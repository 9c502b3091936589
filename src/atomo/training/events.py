"""What a run says while it goes on: records that become lines of JSON, and back."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import final

__all__ = [
    "EVENTS",
    "Caution",
    "Ended",
    "Event",
    "Saved",
    "Started",
    "StepDone",
    "from_json",
    "to_json",
]


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
    comm_type: str = "Bcast"
    samples: str = "images"  # what they are called
    chosen: str = ""  # what `--code auto` came to
    fusion: str = ""  # what was found for `--fusion auto`


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
class Ended:
    """The run is over."""

    step: int
    reason: str


Event = Started | StepDone | Caution | Saved | Ended
EVENTS: Mapping[str, type[Event]] = MappingProxyType(
    {event.__name__: event for event in (Started, StepDone, Caution, Saved, Ended)}
)


def to_json(event: Event) -> str:
    """One line."""
    return json.dumps({"event": type(event).__name__} | asdict(event))


def from_json(line: str) -> Event:
    """The inverse of `to_json`."""
    values = json.loads(line)
    return EVENTS[values.pop("event")](**values)
