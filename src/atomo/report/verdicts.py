"""The verdict of a run: sentences that its records prove, or that are marked as predicted."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from atomo.core.number_text import bytes_text, duration_text
from atomo.core.quantities import speed_text
from atomo.report.curves import metric_curve
from atomo.report.pages import Sentence
from atomo.report.records import RunRecords
from atomo.training.job.events import DONE

__all__ = [
    "MEASURED",
    "PARTS",
    "PREDICTED",
    "WARM_UP",
    "part_times",
    "run_verdict",
    "typical_step_s",
]

MEASURED: Final = "measured"
PREDICTED: Final = "predicted"
PARTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "compute_s": "forward and backward passes",
        "encode_s": "encoding",
        "send_s": "sending",
        "wait_s": "waiting",
        "follow_s": "repeating the master's step",
        "decode_s": "decoding",
        "update_s": "the optimizer",
    }
)
"""Parts of a step in metrics.jsonl, in words."""
WARM_UP: Final = 2  # first steps, in which memory is still being made
SAME: Final = 0.02  # a difference of less than this share is none


def run_verdict(run: RunRecords) -> list[Sentence]:
    """Returns what a reader should know first about a run."""
    if not len(run.steps):
        return [Sentence("This run has no steps: it has not begun, or its records are gone.")]
    sentences = [outcome(run), bytes_saved(run), worth(run), bottleneck(run)]
    return [*filter(None, sentences), *failure(run), *lost_samples(run)]


def outcome(run: RunRecords) -> Sentence:
    """States the end of the run, its length and its result."""
    steps = run.steps
    last, seconds = int(steps["step"][-1]), duration_text(steps.total("step_s"))
    plural = "s" * (last != 1)
    text = f"{ending(run)} after {last:,} step{plural} and {seconds} of training"
    if not np.isfinite(steps["loss"][-1]):
        return Sentence(f"{text}: the loss is no finite number any more.", MEASURED)
    curve = metric_curve(run)
    finite = curve.values[np.isfinite(curve.values)]
    if len(finite):
        name = curve.metric.title or curve.metric.shown
        text += f": test {name} {curve.metric.text(float(finite[-1]))}"
        if curve.metric.better(curve.best, float(finite[-1])):
            text += f" (best {curve.metric.text(curve.best)})"
        return Sentence(f"{text}.", MEASURED)
    return Sentence(f"{text}: training loss {final_loss(run):.4g}, never evaluated.", MEASURED)


def failure(run: RunRecords) -> Iterator[Sentence]:
    """States the last error of a rank, if the job failed."""
    exits, notes = run.events_of("Exited"), run.events_of("Note")
    errors = [text for note in notes if (text := str(note.get("text"))).startswith("atomo: rank")]
    if exits and exits[-1].get("exit_code") and errors:
        yield Sentence(errors[-1])


def ending(run: RunRecords) -> str:
    """Returns the state of the run in a word or two."""
    if run.end is not None:
        return "Finished" if run.end.reason == DONE else run.end.reason.capitalize()
    codes = [event.get("exit_code") for event in run.events_of("Exited")]
    if codes and codes[-1]:
        return f"Ended early, with exit code {codes[-1]},"
    return "Unfinished"


def final_loss(run: RunRecords) -> float:
    """Returns the mean loss of the last tenth of the steps."""
    losses = run.steps["loss"][-max(1, len(run.steps) // 10) :]
    return float(losses.mean())


def bytes_saved(run: RunRecords) -> Sentence | None:
    """States the bytes of the gradients beside their dense size."""
    dense, sent = run.steps.total("dense_bytes"), run.steps.total("up_bytes")
    if not dense or not sent:
        return None
    steps = len(run.steps)
    sizes = f"{bytes_text(sent / steps)} a step instead of {bytes_text(dense / steps)}"
    if abs(dense / sent - 1) < SAME:
        return Sentence(f"Gradients were sent uncompressed: {sizes}.", MEASURED)
    return Sentence(f"Gradients took {dense / sent:.3g} times fewer bytes: {sizes}.", MEASURED)


def worth(run: RunRecords) -> Sentence | None:
    """Predicts if compression pays: from the plan's measurement of dense steps, or else from the
    time of the codec and the bytes that it saves.
    """
    step_s = typical_step_s(run)
    if run.codecs and not run.codecs.why and step_s and run.codecs.dense_s:
        dense_s = run.codecs.dense_s
        pays = "pays" if dense_s > step_s else "does not pay"
        text = f"Compression {pays} on these links: steps take {1e3 * step_s:.3g} ms"
        return Sentence(f"{text}, and dense steps would take {1e3 * dense_s:.3g} ms.", PREDICTED)
    steps = run.steps.after(WARM_UP)
    saved = (steps.total("dense_bytes") - steps.total("up_bytes")) / len(steps)
    codec_s = (steps.total("encode_s") + steps.total("decode_s")) / len(steps)
    if saved <= 0 or codec_s <= 0:
        return None
    return Sentence(
        f"Compression pays on links slower than {speed_text(8 * saved / codec_s)}: there, the "
        f"bytes that it saves take longer than its {1e3 * codec_s:.3g} ms of encoding and "
        "decoding a step.",
        PREDICTED,
    )


def typical_step_s(run: RunRecords) -> float:
    """Returns the median time of a step after the first ones; 0 without steps."""
    times = run.steps.after(WARM_UP)["step_s"]
    times = times[np.isfinite(times)]
    return float(np.median(times)) if len(times) else 0.0


def part_times(run: RunRecords) -> dict[str, float]:
    """Returns the mean seconds of each part of a step after the first ones, by its words; parts
    without time are left out.
    """
    steps = run.steps.after(WARM_UP)
    means = {words: steps.mean(name) for name, words in PARTS.items()}
    return {words: seconds for words, seconds in means.items() if seconds > 0}


def bottleneck(run: RunRecords) -> Sentence | None:
    """Names the part of a step that takes longest."""
    parts, step_s = part_times(run), run.steps.after(WARM_UP).mean("step_s")
    if not parts or not step_s:
        return None
    words, seconds = max(parts.items(), key=lambda part: part[1])
    share = min(1.0, seconds / step_s)
    text = f"Most of a step goes into {words}: {1e3 * seconds:.3g} of {1e3 * step_s:.3g} ms"
    hidden, exchange = run.steps.total("hidden_s"), run.steps.total("exchange_s")
    share_hidden = hidden / exchange if exchange else 0.0
    beside = f"; {share_hidden:.0%} of the exchange is hidden" if share_hidden > SAME else ""
    return Sentence(f"{text} ({share:.0%}){beside}.", MEASURED)


def lost_samples(run: RunRecords) -> Iterator[Sentence]:
    """States samples that counted in no step, and cautions of the run."""
    lost = {name: run.steps.total(f"images_{name}") for name in ("late", "lost", "refused")}
    parts = [f"{count:,.0f} {name}" for name, count in lost.items() if count]
    if parts:
        asked = run.steps.total("images_asked")
        yield Sentence(f"Of {asked:,.0f} samples, {' and '.join(parts)}.", MEASURED)
    cautions: list[Any] = run.events_of("Caution")
    if cautions:
        yield Sentence(f"Caution: {cautions[-1].get('text', '')}")
