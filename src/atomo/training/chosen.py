"""What `--code auto` came to: the codecs of a run, and what speaks for them."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from atomo.arguments import flag
from atomo.config import Settings
from atomo.errors import CheckpointError
from atomo.training.plan_records import continued, in_force, moved, with_earlier
from atomo.training.run_folder import Staging
from atomo.training.trials import Trial, listed

__all__ = ["Chosen", "keep_chosen", "kept_chosen", "length_said", "said"]

CHOSEN_FILE: Final = "auto.json"
SAID: Final = ("network", "dataset", "comm_type", "n", "batch_size", "error_budget")


@final
@dataclass(frozen=True)
class Chosen:
    """The codecs, and the prediction that they were chosen by."""

    codes: dict[str, str]
    """Of each parameter that does not travel dense whatever the codec, from the last to the
    first."""
    memory: str
    error: float
    budget: float
    step_s: float
    dense_s: float  # a step with every gradient dense
    took_s: float  # measuring and choosing
    said: dict[str, Any]
    """The settings that it depends on."""
    hosts: tuple[str, ...] = ()
    """By rank, where it was measured; empty: nobody knows."""
    since: int = 1
    """The first step that it serves in."""
    trials: tuple[Trial, ...] = ()
    """Of it, first, and of others that were tried; empty: none were."""
    why: str = ""
    """Why nothing was measured, and every gradient is dense; empty: it was."""

    def differs(self, settings: Settings, hosts: tuple[str, ...]) -> str:
        """What it is no answer to, of what these settings ask on these hosts; empty: nothing."""
        for name in dict.fromkeys((*SAID, *self.said)):
            value = getattr(settings, name, None)
            if self.said.get(name) != value:
                return f"it is of {flag(name)} {self.said.get(name)}, and not {value}"
        if settings.memory not in ("auto", self.memory):
            return f"it is of --memory {self.memory}, and not {settings.memory}"
        return moved(self.hosts, hosts)

    @staticmethod
    def read(record: Mapping[str, Any]) -> "Chosen":
        """The inverse of `asdict`, of what went through JSON.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        hosts = (*map(str, record.get("hosts", ())),)
        trials = (*map(Trial.read, record.get("trials", ())),)
        return Chosen(**{**record, "hosts": hosts, "trials": trials})

    def applied(self, settings: Settings) -> Settings:
        """The run with these codecs: a repetition of it, which names them, has the same bits."""
        code = next(iter(counted(self.codes)), "sgd")
        others: dict[str, list[str]] = {}
        for name, one in self.codes.items():
            if one != code:
                others.setdefault(one, []).append(name)
        code_for = "; ".join(f"{one}: {' '.join(names)}" for one, names in others.items())
        return replace(settings, code=code, code_for=code_for, memory=self.memory).resolved()

    @property
    def text(self) -> str:
        """One line."""
        if self.why:
            return f"auto: all dense, memory {self.memory}: the run is {self.why}"
        parts = [
            f"{count} tensor{'s' * (count > 1)} {code}"
            for code, count in counted(self.codes).items()
        ]
        return (
            f"auto: {', '.join(parts) or 'all dense'}, memory {self.memory}: "
            f"{1e3 * self.step_s:.1f} ms a step predicted, dense {1e3 * self.dense_s:.1f} ms"
            f"{listed(self.trials)}; error {self.error:.3g} of at most {self.budget:.3g}; "
            f"measured in {self.took_s:.1f} s"
        )


def said(settings: Settings) -> dict[str, Any]:
    """What a choice depends on, of the settings."""
    return {name: getattr(settings, name) for name in SAID}


def length_said(settings: Settings) -> dict[str, Any]:
    """Settings that a choice depends on as well where the run was too short to measure."""
    return {name: getattr(settings, name) for name in ("epochs", "max_steps", "auto_share")}


def counted(codes: Mapping[str, str]) -> dict[str, int]:
    """Codecs and how many tensors have them, the most frequent first."""
    return dict(Counter(codes.values()).most_common())


def keep_chosen(folder: Path, chosen: Chosen) -> None:
    """Writes it into the folder of the run, beside those that served before it.

    Raises:
        CheckpointError: it cannot be written.
    """
    record = with_earlier(folder / CHOSEN_FILE, asdict(chosen))
    with Staging(folder) as staging:
        staging.write(CHOSEN_FILE, json.dumps(record, indent=1).encode() + b"\n")
        staging.publish()


def kept_chosen(
    settings: Settings, hosts: tuple[str, ...] = (), say: Callable[[str], object] = lambda why: None
) -> Chosen | None:
    """What served where the run is continued, if it answers what is asked now.

    Args:
        settings: with `--code auto`.
        hosts: of the job, by rank.
        say: told why there is something that does not serve.

    Raises:
        CheckpointError: the file is none that `keep_chosen` wrote.
    """
    place = continued(settings)
    if place is None:
        return None
    folder, step = place
    path = folder / CHOSEN_FILE
    found = read_chosen(path, step)
    if found is None or not (why := found.differs(settings, hosts)):
        return found
    say(f"{path} does not serve this job: {why}; codecs are measured and chosen anew")
    return None


def read_chosen(path: Path, step: int) -> Chosen | None:
    """The choice that served in the step after `step`; None: there is none."""
    try:
        record = in_force(path, step)
        return None if record is None else Chosen.read(record)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is no record of --code auto ({error}); remove it to have codecs chosen anew"
        ) from error
