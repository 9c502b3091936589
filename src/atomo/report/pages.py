"""Pages: values that say what a page has, and the one template that writes them as HTML.

    Page = title, verdict, sections;  PageSection = heading, sentences, facts, charts, tables

A page is one file without scripts. Its policy for contents forbids all requests. The template
escapes every text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from atomo.core.visible import visible
from atomo.report.charts import Chart
from atomo.training.folder.run_folder import Staging

__all__ = ["Page", "PageSection", "PageTable", "Sentence", "page_html", "write_page"]

TEMPLATE: Final = "page.html"
CODE: Final = Markup("<code>{}</code>")


@final
@dataclass(frozen=True)
class Sentence:
    """A statement, and its source: measured, predicted, or empty for a plain remark."""

    text: str
    source: str = ""


@final
@dataclass(frozen=True)
class PageTable:
    """A table; the first column names the row."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_folded: bool = False
    """True if the reader opens it."""
    is_text: bool = False
    """True if the columns are texts, which begin at the left, and no numbers."""


@final
@dataclass(frozen=True)
class PageSection:
    """A part of a page under a heading."""

    heading: str
    sentences: Sequence[Sentence] = ()
    facts: Sequence[tuple[str, str]] = ()
    charts: Sequence[Chart | None] = ()
    tables: Sequence[PageTable] = ()
    commands: Sequence[str] = ()
    """Lines that a reader may copy."""
    legend: Sequence[tuple[str, str]] = ()
    """Classes and names of the lines that all charts of the section have."""

    @property
    def anchor(self) -> str:
        """The name of the section in links."""
        return "-".join(self.heading.lower().split())

    @property
    def drawn(self) -> Iterator[Chart]:
        """The charts that have something to show."""
        return filter(None, iter(self.charts))


@final
@dataclass(frozen=True)
class Page:
    """A page; `refresh_s` makes a browser load it again after so many seconds, 0 never."""

    title: str
    subtitle: str
    verdict: Sequence[Sentence]
    sections: Sequence[PageSection]
    foot: str
    refresh_s: int = 0


def page_html(page: Page) -> str:
    """Returns a page as HTML."""
    # A lone surrogate stands for a byte of a path that is no UTF-8, and has no place in a file.
    return visible(template().render(page=page))


def write_page(folder: Path, name: str, text: str) -> Path:
    """Writes a page into a folder, and returns its path.

    Raises:
        CheckpointError: the file cannot be written; an existing file is unchanged.
    """
    with Staging(folder) as staging:
        staging.write(name, text.encode())
        staging.publish()
    return folder / name


@cache
def template() -> Template:
    """Returns the template of all pages."""
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("atomo.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["coded"] = coded
    return environment.get_template(TEMPLATE)


def coded(text: str) -> Markup:
    """Returns a text as HTML, with its parts between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its pair
        return escape(text)
    kinds = (escape, CODE.format)
    return Markup("").join(kinds[place % 2](part) for place, part in enumerate(parts))
