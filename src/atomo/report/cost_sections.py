"""Sections of the page of one run about its costs: the time of steps, and bytes."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from atomo.core.number_text import bytes_text, duration_text
from atomo.report.charts import BarRow, Chart, Series, bar_chart, line_chart
from atomo.report.columns import Column, number
from atomo.report.curves import smoothed
from atomo.report.pages import PageSection, PageTable, Sentence
from atomo.report.records import RunRecords
from atomo.report.scales import BYTES, SECONDS, ChartAxis
from atomo.report.verdicts import MEASURED, PARTS, WARM_UP, part_times, typical_step_s

__all__ = ["STEP", "bytes_section", "time_section"]

STEP = ChartAxis("step")
BUSY = ("compute_s", "encode_s", "follow_s")  # parts of a step in which no rank waits for others
OF_ROUNDS = (
    "Times by rank are means over exchanges: of a round of local steps they have the last step, or "
    "with a master the whole round."
)
LAYER_COLUMNS: Final = ("layer", "codec", "entries", "uncompressed", "sent", "ratio", "error")
WITHOUT_LAYERS: Final = "No bytes by layer: this run has no layers.json."
WITHOUT_ERRORS: Final = (
    "Layers were not measured in this run: bytes are the most before lossless compression. `atomo "
    "inspect --tensor FILE` measures errors on a gradient that --dump-every has written."
)
FOLDED: Final = 20  # rows; a longer table is opened by the reader


def time_section(run: RunRecords) -> PageSection:
    """Returns the parts of a step, the ranks, and the times of all steps."""
    parts, step_s = part_times(run), run.steps.after(WARM_UP).mean("step_s")
    rows = [(words, f"{1e3 * s:.3g}", f"{s / step_s:.0%}") for words, s in parts.items() if step_s]
    table = PageTable("Mean parts of a step", ("part", "ms", "of the step"), rows)
    facts = [
        ("median step", duration_ms(typical_step_s(run))),
        ("mean step", duration_ms(step_s)),
        ("all steps", duration_text(run.steps.total("step_s"))),
    ]
    sentences = [
        Sentence(
            f"Parts are means over the workers, without the first {WARM_UP} steps; some run beside "
            "each other."
        ),
        *slowest(run),
    ]
    charts = [part_chart(parts), rank_chart(run), step_chart(run)]
    return PageSection("Where the time goes", sentences, facts, charts, [table] * bool(rows))


def duration_ms(seconds: float) -> str:
    """Returns the time of a step."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 10 else f"{seconds:.3g} s"


def part_chart(parts: Mapping[str, float]) -> Chart | None:
    """Draws the mean parts of a step."""
    rows = [BarRow(words.removeprefix("the "), (seconds,)) for words, seconds in parts.items()]
    return bar_chart(
        "Mean time of the parts of a step", ChartAxis("time", SECONDS), rows, ("time",)
    )


def step_chart(run: RunRecords) -> Chart | None:
    """Draws the time of each step."""
    line = Series("step", run.steps["step"], run.steps["step_s"])
    axis = ChartAxis("time of a step", SECONDS, may_be_log=True)
    return line_chart("Time of each step", STEP, axis, [line])


def rank_chart(run: RunRecords) -> Chart | None:
    """Draws the mean parts of a step of each rank; None if the records have none."""
    times = rank_times(run)
    if not times:
        return None
    ranks, names = times.pop("rank"), [name for name in PARTS if any(times.get(name, ()))]
    rows = [
        BarRow(f"rank {rank:.0f}", [times[name][place] for name in names])
        for place, rank in enumerate(ranks)
    ]
    title = "Mean time of the parts of a step by rank"
    return bar_chart(title, ChartAxis("time", SECONDS), rows, [PARTS[name] for name in names])


def rank_times(run: RunRecords) -> dict[str, list[float]]:
    """Returns ranks and their mean seconds by part, from the last record; empty without one."""
    records = run.events_of("RankTimes")
    names = ("rank", *PARTS)
    lists = {name: records[-1].get(name) for name in names} if records else {}
    columns = {
        name: [max(0.0, number(value)) for value in values]
        for name, values in lists.items()
        if isinstance(values, list)
    }
    lengths = {len(values) for values in columns.values()}
    return columns if "rank" in columns and len(lengths) == 1 else {}


def slowest(run: RunRecords) -> Iterator[Sentence]:
    """Names the worker that was slowest most often."""
    workers = run.steps["slowest"]
    named = workers[np.isfinite(workers) & (workers > 0)]
    if len(named):
        numbers, counts = np.unique(named, return_counts=True)
        worker = numbers[np.argmax(counts)]
        factor = float(np.nanmedian(run.steps["slowness"][workers == worker]))
        yield Sentence(
            f"Worker {worker:.0f} was the slowest in {counts.max() / len(named):.0%} of the steps: "
            f"{factor:.2f} times the median of all workers.",
            MEASURED,
        )
    times = rank_times(run)
    if not times:
        yield Sentence("No times by rank: the records of this run have means over all ranks.")
        return
    busy = np.sum([times[name] for name in BUSY if name in times], axis=0)
    place = int(np.argmax(busy))
    longest, median = duration_ms(float(busy[place])), duration_ms(float(np.median(busy)))
    if (run.steps["round"] > 0).any():
        yield Sentence(OF_ROUNDS)
    text = f"Rank {times['rank'][place]:.0f} computed and encoded longest: {longest} a step"
    yield Sentence(f"{text}; the median of all ranks is {median}.", MEASURED)


def bytes_section(run: RunRecords) -> PageSection:
    """Returns the bytes up and down, and the layers."""
    steps = run.steps
    count, sent, down = max(1, len(steps)), steps.total("up_bytes"), steps.total("down_bytes")
    dense = steps.total("dense_bytes")
    facts = [
        ("gradients sent a step", bytes_text(sent / count)),
        ("uncompressed", bytes_text(dense / count)),
        ("ratio", f"{dense / sent:.3g}" if sent else "-"),
        ("received a step", bytes_text(down / count)),
        ("sent in all", bytes_text(sent)),
        ("received in all", bytes_text(down)),
    ]
    remarks, tables = layer_remarks(run), layer_tables(run)
    return PageSection("Bytes", remarks, facts, [bytes_chart(run)], tables)


def bytes_chart(run: RunRecords) -> Chart | None:
    """Draws the bytes of the steps that exchanged something."""
    names = {"up_bytes": "gradients sent", "down_bytes": "received", "dense_bytes": "uncompressed"}
    lines = []
    for place, (name, words) in enumerate(names.items()):
        exchanged = run.steps[name] > 0
        values: Column = smoothed(run.steps[name][exchanged])
        steps = run.steps["step"][exchanged]
        # Bytes are often equal: what is received, to what is sent or to what is uncompressed.
        lines.append(Series(words, steps, values, place, dashes=place))
    axis = ChartAxis("bytes of an exchange", BYTES, may_be_log=True)
    return line_chart("Bytes of each exchange", STEP, axis, lines)


def layer_remarks(run: RunRecords) -> list[Sentence]:
    """States the origin of the bytes and the errors of layers, and the way down."""
    if not run.layers:
        return [Sentence(WITHOUT_LAYERS)]
    steps = [number(row.get("step")) for row in run.layer_errors]
    if not steps or not math.isfinite(steps[0]):
        return [Sentence(WITHOUT_ERRORS), *way_down(run)]
    text = (
        f"Bytes and errors of layers are those of worker 1 at step {steps[0]:,.0f}. An error is "
        "the norm of what one encoding loses over that of the gradient; a memory sends it later."
    )
    return [Sentence(text, MEASURED), *way_down(run)]


def way_down(run: RunRecords) -> list[Sentence]:
    """States the bytes of each layer from the master to a worker, where all layers are alike."""
    down = run.setting("down")
    if run.setting("comm_type") not in ("ParameterServer", "Bcast") or not down:
        return []
    texts = {
        "auto": "Down, each layer travels as float32 weights on one host, else as frames.",
        "weights": "Down, each layer travels as float32 weights: uncompressed.",
        "weights(bf16)": "Down, each layer travels as bfloat16 weights: half the bytes.",
        "updates": "Down, each layer travels as the frames of all workers that counted.",
    }
    text = texts.get(down, "")
    if down.startswith("delta("):
        text = f"Down, differences of the weights travel, by {down.removeprefix('delta')[1:-1]}."
    return [Sentence(text)] if text else []


def layer_tables(run: RunRecords) -> list[PageTable]:
    """Returns the table of layers; none without a record."""
    errors = {key_of(row): row for row in run.layer_errors}
    cells = [layer_row(layer, errors.get(key_of(layer), {})) for layer in run.layers]
    return [PageTable("Layers", LAYER_COLUMNS, cells, len(cells) > FOLDED)] if cells else []


def key_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the name and the codec of a layer: the codec may change during a run."""
    return str(row.get("name", "")), str(row.get("codec", ""))


def layer_row(layer: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    """Returns the row of a layer."""
    entries, most = number(layer.get("entries")), number(layer.get("bytes"))
    size, error = number(measured.get("bytes")), number(measured.get("error"))
    is_measured = math.isfinite(size) and size > 0
    known = size if is_measured else most
    has_ratio = math.isfinite(entries) and math.isfinite(known) and known > 0
    sent = bytes_text(known) if is_measured else f"at most {bytes_text(known)}"
    return [
        *key_of(layer),
        *([f"{entries:,.0f}", bytes_text(4 * entries)] if math.isfinite(entries) else ["", ""]),
        *([sent, f"{4 * entries / known:.3g}"] if has_ratio else ["", ""]),
        f"{error:.2g}" if math.isfinite(error) else "",
    ]
