"""Folders of runs as tests of reports write them, and a reader of pages."""

import json
import math
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from atomo.config.file import SETTINGS_FILE, settings_text
from atomo.config.settings import Settings

__all__ = ["ParsedPage", "parse_page", "step_line", "write_run"]

VOID = {"meta", "link", "br", "img", "hr", "input"}


def step_line(step: int, **values: object) -> str:
    """Returns a line of metrics.jsonl as a run writes it."""
    record = {
        "event": "StepDone", "step": step, "epoch": step / 10, "loss": 2.0 * 0.99**step + 0.1,
        "accuracy": 0.5, "lr": 0.02, "workers": 2, "images_per_s": 100.0, "up_bytes": 1000,
        "down_bytes": 5000, "dense_bytes": 50_000, "step_s": 0.1 + 0.01 * (step % 3),
        "compute_s": 0.06, "encode_s": 0.004, "send_s": 0.001, "wait_s": 0.03, "decode_s": 0.002,
        "update_s": 0.001, "eta_s": 1.0, "exchange_s": 0.01, "hidden_s": 0.005, "damping": 1.0,
        "follow_s": 0.0, "plan_since": 1, "asked": 2, "late": 0, "lost": 0, "under_way": 0,
        "images_asked": 64, "images_used": 64, "images_late": 0, "images_lost": 0,
        "images_refused": 0, "images_under_way": 0, "refused": 0, "refused_from": [],
        "refused_for": [], "slowest": 2, "slowness": 1.25, "round": 0, "round_steps": 0,
        "outer_rate": 0.0, "correlation": None, "storage_failures": 0,
    }  # fmt: skip
    return json.dumps(record | values)


def write_run(
    folder: Path,
    steps: int = 20,
    every: int = 10,
    end: str = "done",
    settings: Settings | None = None,
    changes: Mapping[int, Mapping[str, object]] | None = None,
    **values: object,
) -> Path:
    """Writes the folder of a run and returns it.

    Args:
        folder: made if it is missing.
        steps: lines of metrics.jsonl.
        every: steps between two evaluations.
        end: the reason in finished.json; empty: there is no such file.
        settings: of settings.toml.
        changes: values of single steps.
        values: of all steps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        step_line(step, **(values | dict((changes or {}).get(step, {}))))
        for step in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / SETTINGS_FILE).write_text(settings_text((settings or Settings()).resolved()))
    tests = [
        {"step": step, "top1": 1 - math.exp(-step / 10), "top5": 1.0, "loss": 0.1, "images": 360}
        for step in range(every, steps + 1, every)
    ]
    (folder / "evaluations.jsonl").write_text("".join(f"{json.dumps(test)}\n" for test in tests))
    if end:
        (folder / "finished.json").write_text(json.dumps({"step": steps, "reason": end}))
    return folder


class ParsedPage(HTMLParser):
    """A page: its text, its elements, and the errors of its structure."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.errors: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.errors.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        """The text of the page in one line."""
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> Iterator[dict[str, str | None]]:
        """Yields the attributes of each element of a name."""
        return (attributes for name, attributes in self.elements if name == tag)


def parse_page(html: str) -> ParsedPage:
    """Returns a page after checks of its structure: it is whole, requests nothing, runs nothing,
    and each picture has a title, a text, axes and their labels.
    """
    page = ParsedPage()
    page.feed(html)
    page.close()
    assert not page.errors
    assert not page.open
    names = [name for name, _ in page.elements]
    assert not {"script", "iframe", "object", "embed", "img", "base", "form"} & {*names}
    for name, attributes in page.elements:
        assert not [key for key in attributes if key.startswith("on")], name
        for key in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(key) or "#").startswith(("#", "data:,")), attributes
    assert "url(" not in html
    assert "@import" not in html
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert names.count("h1") == names.count("title") - html.count('role="img"') == 1
    check_pictures(html)
    return page


def check_pictures(html: str) -> None:
    """Checks each picture: it is XML, with a title, an alternative text, and labelled axes."""
    for part in html.split("<svg ")[1:]:
        picture: Any = ElementTree.fromstring("<svg " + part.partition("</svg>")[0] + "</svg>")
        if picture.get("role") != "img":
            assert picture.get("aria-hidden") == "true"
            continue
        title, text = picture.find("title"), picture.find("desc")
        assert picture.get("aria-labelledby") == f"{title.get('id')} {text.get('id')}"
        assert title.text
        assert text.text
        labels = [one.text for one in picture.iter("text") if one.get("class") == "label"]
        assert labels
        assert all(labels)
        assert picture.findall("path[@class='axis']")
        assert "nan" not in part.partition("</svg>")[0].lower().replace(title.text.lower(), "")
