"""A partition into messages that was found from measured costs, and what speaks for it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

from atomo.errors import ConfigError
from atomo.grouping import cut_at
from atomo.training.trials import Trial, listed

__all__ = ["Found"]


@final
@dataclass(frozen=True)
class Found:
    """What a search came to."""

    way: str
    """How it was searched: a name in `--fusion`."""
    cuts: tuple[int, ...]
    job: str
    """A hash of all that the costs depend on."""
    exchange_s: float
    """Predicted: from the begin of the backward pass until all is decoded."""
    layers_s: float
    """The same with a message for each parameter."""
    one_s: float
    """The same with one message."""
    took_s: float
    """What measuring and searching took."""
    numbers: tuple[float, ...]
    """The agreed costs, as `probing.Probed.numbers` has them."""
    step_s: float = 0.0
    """A whole step, predicted; 0: nobody knows."""
    hosts: tuple[str, ...] = ()
    """By rank, where it was measured; empty: nobody knows."""
    since: int = 1
    """The first step that it serves in."""
    trials: tuple[Trial, ...] = ()
    """Of it, first, and of others that were tried; empty: none were."""
    why: str = ""
    """Why nothing was measured, and the messages are the default's; empty: it was."""

    @property
    def text(self) -> str:
        """One line."""
        many = len(self.cuts)
        if self.why:
            return f"fusion {self.way}: {many} message{'s' * (many > 1)}: the run is {self.why}"
        return (
            f"fusion {self.way}: {many} message{'s' * (many > 1)}, predicted "
            f"{1e3 * self.exchange_s:.1f} ms from the begin of the backward pass to the mean "
            f"({1e3 * self.layers_s:.1f} a message for each parameter, {1e3 * self.one_s:.1f} in "
            f"one){listed(self.trials)}; measured in {self.took_s:.1f} s"
        )

    def record(self) -> dict[str, Any]:
        """What a file keeps."""
        return asdict(self)

    @staticmethod
    def read(record: object) -> "Found":
        """The inverse of `record`, of a file that anyone may have written.

        Raises:
            ValueError: it is none.
        """
        try:
            values = dict(record) if isinstance(record, Mapping) else {}
            cuts = cut_at([whole(cut) for cut in values["cuts"]]).ends
            numbers = tuple(float(number) for number in values["numbers"])
            seconds = {n: float(values[n]) for n in ("exchange_s", "layers_s", "one_s", "took_s")}
            return Found(
                str(values["way"]), cuts, str(values["job"]), **seconds, numbers=numbers,
                step_s=float(values.get("step_s", 0.0)),
                hosts=tuple(map(str, values.get("hosts", ()))),
                since=whole(values.get("since", 1)),
                trials=(*map(Trial.read, values.get("trials", ())),),
                why=str(values.get("why", "")),
            )  # fmt: skip
        except (KeyError, TypeError, ConfigError) as error:
            raise ValueError(str(error)) from error


def whole(number: object) -> int:
    """A whole number. Raises ValueError for anything else."""
    if type(number) is not int:
        raise ValueError(f"{number!r} is no number of parameters")
    return number
