"""What `--code auto` came to: the codecs of a run, and what speaks for them."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from atomo.config import Settings
from atomo.errors import CheckpointError
from atomo.training.plain_file import read_whole
from atomo.training.run_folder import Staging, decoded

__all__ = ["Chosen", "keep_chosen", "kept_chosen"]

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

    def holds_for(self, settings: Settings) -> bool:
        """Whether it is an answer to what these settings ask."""
        return self.said == said(settings) and settings.memory in ("auto", self.memory)

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
        parts = [
            f"{count} tensor{'s' * (count > 1)} {code}"
            for code, count in counted(self.codes).items()
        ]
        return (
            f"auto: {', '.join(parts) or 'all dense'}, memory {self.memory}: "
            f"{1e3 * self.step_s:.1f} ms a step predicted, dense {1e3 * self.dense_s:.1f} ms; "
            f"error {self.error:.3g} of at most {self.budget:.3g}; measured in {self.took_s:.1f} s"
        )


def said(settings: Settings) -> dict[str, Any]:
    """What a choice depends on, of the settings."""
    return {name: getattr(settings, name) for name in SAID}


def counted(codes: Mapping[str, str]) -> dict[str, int]:
    """Codecs and how many tensors have them, the most frequent first."""
    return dict(Counter(codes.values()).most_common())


def keep_chosen(folder: Path, chosen: Chosen) -> None:
    """Writes it into the folder of the run.

    Raises:
        CheckpointError: it cannot be written.
    """
    with Staging(folder) as staging:
        staging.write(CHOSEN_FILE, json.dumps(asdict(chosen), indent=1).encode() + b"\n")
        staging.publish()


def kept_chosen(settings: Settings) -> Chosen | None:
    """What the run that is continued came to, where it answers what is asked now.

    Raises:
        CheckpointError: the file is none that `keep_chosen` wrote.
    """
    for found in read_chosen(settings):
        if found.holds_for(settings):
            return found
    return None


def read_chosen(settings: Settings) -> Iterator[Chosen]:
    """The choice in the folder that the run continues, if there is one."""
    if settings.resume == "never":
        return
    folder = settings.train_dir if settings.resume == "auto" else settings.resume
    path = Path(folder) / CHOSEN_FILE
    try:
        values = decoded(read_whole(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    try:
        yield Chosen(**values)
    except TypeError as error:
        raise CheckpointError(
            f"{path} is no record of --code auto ({error}); remove it to have codecs chosen anew"
        ) from error
