"""The plan of a run: the codecs of `--code auto`, the messages of `--fusion auto`.

    Plan
      codecs: CodecPlan     auto.json in the folder of the run
      messages: MessagePlan fusion.json

`planner.py` makes a plan before the first step. `replan.py` makes another when steps have drifted
from the prediction. `plan_records.py` stores plans in files.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final

from atomo.config.comm_types import settings_of_stored
from atomo.config.settings import Settings
from atomo.core.arguments import flag
from atomo.errors import ConfigError
from atomo.options.grouping import cut_at

__all__ = [
    "CODECS_FILE",
    "MESSAGES_FILE",
    "CodecPlan",
    "MessagePlan",
    "Plan",
    "TrialResult",
    "length_settings",
    "planned_settings",
]

CODECS_FILE: Final = "auto.json"
MESSAGES_FILE: Final = "fusion.json"
DEPENDS_ON: Final = ("network", "dataset", "comm_type", "n", "batch_size", "error_budget")


@final
@dataclass(frozen=True)
class TrialResult:
    """Predicted and measured seconds of a step by one candidate (`plan_trials.py`)."""

    name: str
    predicted_s: float
    taken_s: float
    """The median of the trial's steps."""

    @staticmethod
    def read(values: Any) -> "TrialResult":
        """Reads a record of `asdict` after a round trip through JSON.

        Raises:
            KeyError, TypeError, ValueError: the values are no such record.
        """
        times = float(values["predicted_s"]), float(values["taken_s"])
        return TrialResult(str(values["name"]), *times)


@final
@dataclass(frozen=True)
class CodecPlan:
    """The codec of each tensor, with its prediction. The fields are the keys of auto.json."""

    codes: dict[str, str]
    """Codec by parameter, from the last parameter to the first, without parameters that travel
    dense with any codec."""
    memory: str
    error: float
    budget: float
    step_s: float
    dense_s: float  # a step with every gradient dense
    took_s: float  # to measure and to choose
    said: dict[str, Any]
    """The settings that the plan depends on."""
    hosts: tuple[str, ...] = ()
    """Hosts of the measurement by rank; empty: unknown."""
    since: int = 1
    """The first step by this plan."""
    trials: tuple[TrialResult, ...] = ()
    """Results of trials, this plan's first; empty: no plan was tried."""
    why: str = ""
    """Reason why nothing was measured and every gradient is dense; empty: it was measured."""

    def mismatch(self, settings: Settings) -> str:
        """Returns why this plan cannot serve these settings; empty if it can."""
        for name in dict.fromkeys((*DEPENDS_ON, *self.said)):
            value = getattr(settings, name, None)
            if self.said.get(name) != value:
                return f"it is of {flag(name)} {self.said.get(name)}, and not {value}"
        if settings.memory not in ("auto", self.memory):
            return f"it is of --memory {self.memory}, and not {settings.memory}"
        return ""

    @staticmethod
    def read(record: Mapping[str, Any]) -> "CodecPlan":
        """Reads a record of `asdict` after a round trip through JSON.

        Raises:
            KeyError, TypeError, ValueError: the mapping is no such record.
        """
        hosts = (*map(str, record.get("hosts", ())),)
        trials = (*map(TrialResult.read, record.get("trials", ())),)
        settings = settings_of_stored(record["said"])
        return CodecPlan(**{**record, "said": settings, "hosts": hosts, "trials": trials})

    def applied(self, settings: Settings) -> Settings:
        """Returns settings that name these codecs: a run with them has the same bits."""
        code = next(iter(counted(self.codes)), "sgd")
        names_by_spec: dict[str, list[str]] = {}
        for name, spec in self.codes.items():
            if spec != code:
                names_by_spec.setdefault(spec, []).append(name)
        code_for = "; ".join(f"{spec}: {' '.join(names)}" for spec, names in names_by_spec.items())
        return replace(settings, code=code, code_for=code_for, memory=self.memory).resolved()

    @property
    def text(self) -> str:
        """The plan in one line."""
        if self.why:
            return f"auto: all dense, memory {self.memory}: the run is {self.why}"
        parts = [
            f"{count} tensor{'s' * (count > 1)} {code}"
            for code, count in counted(self.codes).items()
        ]
        return (
            f"auto: {', '.join(parts) or 'all dense'}, memory {self.memory}: "
            f"{1e3 * self.step_s:.1f} ms a step predicted, dense {1e3 * self.dense_s:.1f} ms"
            f"{trials_text(self.trials)}; error {self.error:.3g} of at most {self.budget:.3g}; "
            f"measured in {self.took_s:.1f} s"
        )


@final
@dataclass(frozen=True)
class MessagePlan:
    """The partition into messages, with its prediction. The fields are the keys of fusion.json."""

    way: str
    """The search: a name in `--fusion`."""
    cuts: tuple[int, ...]
    job: str
    """A hash of all that the costs depend on."""
    exchange_s: float
    """Predicted time from the begin of the backward pass until all messages are decoded."""
    layers_s: float
    """The same time with a message for each parameter."""
    one_s: float
    """The same time with one message."""
    took_s: float
    """Seconds to measure and to search."""
    numbers: tuple[float, ...]
    """The measurements that all ranks share, in the order of `Probe.numbers`."""
    step_s: float = 0.0
    """Predicted time of a whole step; 0: unknown."""
    hosts: tuple[str, ...] = ()
    """Hosts of the measurement by rank; empty: unknown."""
    since: int = 1
    """The first step by this plan."""
    trials: tuple[TrialResult, ...] = ()
    """Results of trials, this plan's first; empty: no plan was tried."""
    why: str = ""
    """Reason why nothing was measured and messages are the default's; empty: it was measured."""

    @property
    def fusion(self) -> str:
        """The messages as a value of `--fusion`."""
        return str(cut_at(self.cuts))

    @property
    def text(self) -> str:
        """The plan in one line."""
        count = len(self.cuts)
        if self.why:
            return f"fusion {self.way}: {count} message{'s' * (count > 1)}: the run is {self.why}"
        return (
            f"fusion {self.way}: {count} message{'s' * (count > 1)}, predicted "
            f"{1e3 * self.exchange_s:.1f} ms from the begin of the backward pass to the mean "
            f"({1e3 * self.layers_s:.1f} a message for each parameter, {1e3 * self.one_s:.1f} in "
            f"one){trials_text(self.trials)}; measured in {self.took_s:.1f} s"
        )

    @staticmethod
    def read(record: object) -> "MessagePlan":
        """Reads a record of `asdict` from an untrusted file.

        Raises:
            ValueError: the object is no such record.
        """
        try:
            values = dict(record) if isinstance(record, Mapping) else {}
            cuts = cut_at([whole(cut) for cut in values["cuts"]]).ends
            numbers = tuple(float(number) for number in values["numbers"])
            seconds = {n: float(values[n]) for n in ("exchange_s", "layers_s", "one_s", "took_s")}
            return MessagePlan(
                str(values["way"]), cuts, str(values["job"]), **seconds, numbers=numbers,
                step_s=float(values.get("step_s", 0.0)),
                hosts=tuple(map(str, values.get("hosts", ()))),
                since=whole(values.get("since", 1)),
                trials=(*map(TrialResult.read, values.get("trials", ())),),
                why=str(values.get("why", "")),
            )  # fmt: skip
        except (KeyError, TypeError, ConfigError) as error:
            raise ValueError(str(error)) from error


@final
@dataclass(frozen=True)
class Plan:
    """Codecs and messages of a run, each where the settings ask for a search."""

    codecs: CodecPlan | None = None
    messages: MessagePlan | None = None

    @property
    def parts(self) -> tuple[CodecPlan | MessagePlan, ...]:
        """The parts that were searched for."""
        return tuple(part for part in (self.codecs, self.messages) if part)

    @property
    def since(self) -> int:
        """The first step with these codecs and messages."""
        return max((part.since for part in self.parts), default=1)

    @property
    def expected_s(self) -> float:
        """Seconds of a step: measured in trials, or else predicted; 0: unknown."""
        times_s = [expected(part.trials, part.step_s) for part in reversed(self.parts)]
        return next(filter(None, times_s), 0.0)

    @property
    def text(self) -> str:
        """One line for each part."""
        return "\n".join(part.text for part in self.parts)

    def changed(self, **changes: Any) -> "Plan":
        """Returns the plan with changed fields; both parts must have them."""
        codecs, messages = self.codecs, self.messages
        return Plan(
            codecs and replace(codecs, **changes), messages and replace(messages, **changes)
        )

    def applied(self, settings: Settings) -> Settings:
        """Returns settings that name these codecs and messages."""
        settings = self.codecs.applied(settings) if self.codecs else settings
        return replace(settings, fusion=self.messages.fusion) if self.messages else settings

    def record(self) -> dict[str, Any]:
        """Returns the plan as values for JSON."""
        return asdict(self)

    @staticmethod
    def read(record: Mapping[str, Any]) -> "Plan":
        """Reads a record of another rank."""
        codecs, messages = record["codecs"], record["messages"]
        return Plan(
            CodecPlan.read(codecs) if codecs else None,
            MessagePlan.read(messages) if messages else None,
        )


def planned_settings(settings: Settings) -> dict[str, Any]:
    """Returns the settings that a choice of codecs depends on."""
    return {name: getattr(settings, name) for name in DEPENDS_ON}


def length_settings(settings: Settings) -> dict[str, Any]:
    """Returns the settings that the choice also depends on if the run is too short to measure."""
    return {name: getattr(settings, name) for name in ("epochs", "max_steps", "auto_share")}


def counted(codes: Mapping[str, str]) -> dict[str, int]:
    """Returns the number of tensors by codec, the most frequent codec first."""
    return dict(Counter(codes.values()).most_common())


def expected(trials: Sequence[TrialResult], predicted_s: float) -> float:
    """Returns the seconds of a step by a plan: measured in its trial, or else predicted."""
    return trials[0].taken_s if trials else predicted_s


def trials_text(trials: Sequence[TrialResult]) -> str:
    """Returns the results as a part of a line; empty if there are none."""
    if not trials:
        return ""
    first, *losers = trials
    beside = ", ".join(f"{trial.name} {1e3 * trial.taken_s:.1f}" for trial in losers)
    return f"; {1e3 * first.taken_s:.1f} in trial steps" + (f" ({beside})" if beside else "")


def whole(number: object) -> int:
    """Returns a whole number. Raises ValueError for anything else."""
    if type(number) is not int:
        raise ValueError(f"{number!r} is no number of parameters")
    return number
