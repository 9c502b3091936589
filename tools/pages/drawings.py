"""Draws the pictures of the pages on concepts.

python tools/pages/drawings.py    writes docs/drawings/
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from svg import Drawing

__all__ = ["DRAWINGS", "FOLDER"]

FOLDER: Final = Path(__file__).parents[2] / "docs" / "drawings"


def bucket() -> Drawing:
    """Draws the way of one bucket from a worker's gradient to new weights."""
    drawing = Drawing(
        520, "The life of a bucket",
        "At a worker: backward pass, bucket, memory, codec, frame. Over the link to the master: "
        "check, decode into the sum, optimizer, weights, and back to the model.",
    )  # fmt: skip
    drawing.text(165, 30, "a worker", bold=True)
    drawing.text(515, 30, "the master, rank 0", bold=True)
    left = [
        ("compute", "backward pass", "a gradient is complete"),
        ("quiet", "bucket", "about 4 MB of parameters"),
        ("code", "memory", "adds what was not sent before"),
        ("code", "codec", "gradient to a small payload"),
        ("link", "frame", "header, sections, checksum"),
    ]
    right = [
        ("compute", "weights", "float32, one copy"),
        ("compute", "optimizer", "SGD, Adam, AdamW or Muon"),
        ("code", "sum", "in the order of ranks"),
        ("code", "codec", "decodes straight into the sum"),
        ("link", "check", "refuses what is not expected"),
    ]
    for number, (kind, *lines) in enumerate(left):
        drawing.box(40, 48 + 88 * number, 250, 54, *lines, kind=kind)
        if number:
            drawing.arrow((165, 14 + 88 * number), (165, 46 + 88 * number))
    for number, (kind, *lines) in enumerate(right):
        drawing.box(390, 48 + 88 * number, 250, 54, *lines, kind=kind)
        if number:
            drawing.arrow((515, 46 + 88 * number), (515, 16 + 88 * number))
    drawing.arrow((290, 427), (388, 427))
    drawing.text(340, 418, "MPI")
    drawing.arrow((388, 75), (292, 75))
    drawing.text(340, 66, "--down")
    drawing.arrow((290, 339), (312, 339), (312, 251), (292, 251), dashed=True)
    drawing.note(500, "dashed: what the codec dropped goes back to the memory, for the next step")
    return drawing


def step() -> Drawing:
    """Draws the times of one step at a worker and at the master."""
    drawing = Drawing(
        300, "The times of a step",
        "A worker encodes and sends each bucket while the backward pass computes the next one. "
        "The master decodes each frame as it arrives, steps, and sends the weights.",
    )  # fmt: skip
    rows = ["compute", "encode", "link", "master"]
    for number, name in enumerate(rows):
        drawing.text(14, 67 + 48 * number, name, anchor="start", bold=True)
        drawing.line(90, 84 + 48 * number, 666, 84 + 48 * number, dashed=True)
    drawing.note(24, "one worker of several; time runs to the right")
    drawing.bar(90, 50, 110, "forward", "compute")
    for number in range(3):
        start = 200 + 90 * number
        drawing.bar(start, 50, 90, f"backward {3 - number}", "compute")
        drawing.bar(start + 90, 98, 50, f"code {3 - number}", "code")
        drawing.bar(start + 140, 146, 50, f"send {3 - number}", "link")
        drawing.bar(start + 190, 194, 40, "add", "code")
    drawing.bar(610, 194, 52, "update", "compute")
    drawing.bar(470, 50, 192, "wait for the weights", "wait")
    drawing.arrow((636, 192), (636, 76))
    drawing.note(258, "The step takes as long as the passes, the last bucket, and the update:")
    drawing.note(278, "the other buckets travel while the worker computes.")
    return drawing


def weight_sync() -> Drawing:
    """Draws the three ways in which workers get new weights."""
    drawing = Drawing(
        398, "Three ways down",
        "weights: the master sends all weights, and workers forward them in a chain. updates: "
        "workers get the gradients that counted and repeat the step. delta: a compressed "
        "difference is added to the workers' weights.",
    )  # fmt: skip
    rows = [
        ("--down weights", "all weights", "forwards the pieces", "stores them"),
        ("--down updates", "the frames that counted", "repeats the step", "repeats the step"),
        ("--down delta(CODEC)", "a coded difference", "adds it", "adds it"),
    ]
    for number, (name, sent, first, second) in enumerate(rows):
        top = 50 + 115 * number
        drawing.text(14, top - 14, name, anchor="start", bold=True)
        drawing.box(14, top, 110, 54, "master", kind="compute")
        drawing.arrow((124, top + 27), (312, top + 27))
        drawing.text(218, top + 19, sent, size=13)
        drawing.box(314, top, 150, 54, "worker 1", first, kind="code")
        drawing.arrow((464, top + 27), (514, top + 27))
        drawing.box(516, top, 150, 54, "worker 2", second, kind="code")
    drawing.note(366, "Over several hosts the master's link carries one copy; each worker")
    drawing.note(384, "forwards it. --down auto takes weights or updates: the fewer bytes.")
    return drawing


def recovery() -> Drawing:
    """Draws a step in which a worker dies, and the step after it."""
    drawing = Drawing(
        336, "A worker dies",
        "Worker 3 dies in the middle of step 7. The step closes with the gradients of the others. "
        "In step 8 a spare has its slot, or the other workers divide its images.",
    )  # fmt: skip
    for number, name in enumerate(["master", "worker 1", "worker 2", "worker 3", "spare"]):
        drawing.text(14, 67 + 46 * number, name, anchor="start", bold=True)
        drawing.line(90, 84 + 46 * number, 666, 84 + 46 * number, dashed=True)
    drawing.text(230, 26, "step 7", bold=True)
    drawing.text(530, 26, "step 8", bold=True)
    drawing.line(392, 34, 392, 276)
    drawing.bar(330, 50, 58, "update", "compute")
    drawing.bar(608, 50, 58, "update", "compute")
    for number in (1, 2):
        drawing.bar(90, 50 + 46 * number, 190, "gradient", "compute")
        drawing.bar(396, 50 + 46 * number, 190, "gradient", "compute")
        drawing.arrow((280, 62 + 46 * number), (340, 62 + 46 * number), (340, 76))
        drawing.arrow((586, 62 + 46 * number), (630, 62 + 46 * number), (630, 76))
    drawing.bar(90, 188, 90, "gradient", "compute")
    drawing.bar(180, 188, 120, "killed", "fault")
    drawing.bar(90, 234, 296, "waits, with data and model loaded", "wait")
    drawing.bar(396, 234, 190, "gradient", "compute")
    drawing.arrow((586, 246), (630, 246), (630, 76))
    drawing.note(302, "Lost: the gradient of worker 3 in step 7, and what its memory held.")
    drawing.note(321, "Without a spare, workers 1 and 2 divide its images from step 8 on.")
    return drawing


def local_round() -> Drawing:
    """Draws one round of local steps."""
    drawing = Drawing(
        330, "A round of local steps",
        "Every worker starts at the anchor, takes H steps alone, and sends the difference from the "
        "anchor. The outer optimizer steps the anchor with the mean of the differences.",
    )  # fmt: skip
    drawing.box(14, 126, 96, 60, "anchor", "the same", "everywhere", kind="compute")
    for number, top in enumerate((46, 210)):
        drawing.arrow((110, 156), (138, top + 27))
        drawing.box(140, top, 200, 54, f"worker {number + 1}", "H steps with its optimizer",
                    kind="compute")  # fmt: skip
        drawing.arrow((340, top + 27), (366, top + 27))
        drawing.box(368, top, 132, 54, "difference", "memory, codec", kind="code")
        drawing.arrow((500, top + 27), (545, 124 if number == 0 else 188))
    drawing.box(520, 126, 146, 60, "mean", "outer optimizer", kind="code")
    drawing.arrow((593, 126), (593, 26), (62, 26), (62, 124))
    drawing.text(330, 20, "the next anchor", size=13)
    drawing.note(298, "One exchange in H steps. A worker's optimizer is never reset.")
    drawing.note(317, "What is evaluated and saved is the anchor.")
    return drawing


def frame() -> Drawing:
    """Draws the parts of a frame."""
    drawing = Drawing(
        190, "A frame",
        "A header of 32 bytes, a description, a table with a row for each section, and the "
        "sections. The checksum is over everything else.",
    )  # fmt: skip
    parts = [
        (130, "header", ("kind, step, worker,", "bucket, layout"), "link"),
        (126, "checksum", ("xxh3-64 of", "all other bytes"), "link"),
        (126, "description", ("codec, shapes;", "often empty"), "quiet"),
        (126, "table", ("dtype, size and", "length of each"), "quiet"),
        (144, "sections", ("the tensors of", "the payload"), "code"),
    ]
    x = 14
    for width, name, lines, kind in parts:
        drawing.box(x, 40, width, 84, name, *lines, kind=kind)
        x += width
    drawing.text(79, 28, "24 bytes", size=13)
    drawing.text(207, 28, "8 bytes", size=13)
    drawing.note(152, "A receiver checks the checksum and every size before it allocates memory.")
    drawing.note(172, "There is no pickle in a frame.")
    return drawing


DRAWINGS: Final[Mapping[str, Callable[[], Drawing]]] = MappingProxyType(
    {
        "bucket": bucket,
        "frame": frame,
        "local-round": local_round,
        "recovery": recovery,
        "step": step,
        "weight-sync": weight_sync,
    }
)


def main() -> int:
    """Writes the drawings."""
    for name, draw in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg())
    return 0


if __name__ == "__main__":
    sys.exit(main())
