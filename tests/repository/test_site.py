"""The pages build as a site without a warning, and every link of the site leads somewhere."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class Links(HTMLParser):
    """The targets of the links of a page, and the names of its places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.places |= {name for name in (values.get("id"), values.get("name")) if name}
        target = values.get("href" if tag in ("a", "link") else "src")
        if target:
            self.targets.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"ATOMO_VENV": sys.prefix}
    subprocess.run(
        ["bash", ROOT / "docs" / "build.sh", folder], env=environment, check=True, timeout=300
    )
    return folder


def broken(site: Path) -> Iterator[str]:
    """Yields the links inside the site that have no target."""
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for target in page.targets:
            link = urlsplit(target)
            if link.scheme or link.netloc:
                continue
            end = (path.parent / unquote(link.path)).resolve() if link.path else path
            place = unquote(link.fragment)
            if not end.exists() or (place and end in pages and place not in pages[end].places):
                yield f"{path.relative_to(site)}: {target}"


# The page that Start names for each question of a newcomer, and the end of its answer there.
QUESTIONS = {
    "how do I install it into my environment": ("guides/install.md", 'print(atomo.__version__)"'),
    "how do I use it in my DDP script": ("guides/your-script.md", "torchrun --nproc-per-node 2"),
    "which codec with AdamW at 100 Mbit/s": (
        "which-codec.md#with-adam-or-adamw", "cannot use memory `adam`",
    ),
    "how do I train on my own data": ("guides/own-data.md", "--dataset Folder --data-dir photos"),
    "how do I use several hosts": ("guides/several-hosts.md", "--n 4 --hostfile hosts_address"),
    "it diverged": ("guides/diverged.md", "shortens SGD's steps by the measured noise"),
    "a worker died": ("guides/worker-died.md", "what its memory held"),
    "how do I resume on other hosts": ("guides/resume.md", "--hostfile other_hosts"),
    "what does a frame contain": ("concepts/frames.md", "two factors"),
    "how do I add a codec": ("guides/add-a-codec.md", "Test it"),
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_start_leads_to_the_answer_in_one_click_and_200_words(question):
    target, end = QUESTIONS[question]
    assert f"]({target})" in (DOCS / "index.md").read_text()
    name, _, place = target.partition("#")
    text = (DOCS / name).read_text()
    heading = re.compile(rf"^#+ {place.replace('-', '.')}$", re.MULTILINE | re.IGNORECASE)
    begin = heading.search(text).start() if place else 0
    words = " ".join(text[begin:].split())
    assert end in words
    answer = words[: words.index(end) + len(end)].replace("| --- ", "").replace("|", " ")
    assert len(answer.split()) <= 200


# Tables, code and menus are looked up, not read.
NOT_PROSE = re.compile(r"^ *(```|:::).*?^ *\1|^ *\|.*?$|<!--.*?-->", re.MULTILINE | re.DOTALL)
EXEMPT = {"reference", "archive", "codecs"}
LOOKED_UP = re.compile(r"^(?:\.\./)*([\w/-]+)$", re.MULTILINE)


def prose(page: Path) -> int:
    """Returns the number of words that a reader of the page reads."""
    return len(NOT_PROSE.sub("", page.read_text()).split())


def read_pages() -> list[Path]:
    """Returns the pages outside the reference, its manual and the archive."""
    manual = (DOCS / "reference" / "manual.md").read_text().split("{toctree}")[1]
    looked_up = {DOCS / f"{name}.md" for name in LOOKED_UP.findall(manual)}
    looked_up |= {DOCS / f"{name}.md" for name in ("wire", "glossary")}
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md"]
    return sorted(p for p in {*pages} - looked_up if p.parent.name not in EXEMPT)


def test_what_is_to_be_read_is_short():
    counts = {page: prose(page) for page in read_pages()}
    assert len(counts) > 20
    assert sum(counts.values()) <= 25_000
    assert len((ROOT / "README.md").read_text().split()) <= 1500
    guides = {page.name: len(page.read_text().split()) for page in (DOCS / "guides").glob("*.md")}
    assert max(guides.values()) <= 800, guides


NARROW = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", NARROW, ids=lambda p: p.stem)
def test_lines_of_prose_are_narrow(page):
    lines = NOT_PROSE.sub("", page.read_text()).splitlines()
    wide = [line for line in lines if len(line) > 120 and not line.startswith("      ")]
    assert not wide, wide[0]


def test_every_picture_has_a_text_for_those_who_do_not_see_it():
    pictures = [
        (page.name, text)
        for page in NARROW
        for text in re.findall(r"!\[([^\]]*)\]\(", page.read_text())
    ]
    assert len(pictures) > 10
    assert all(len(text) > 10 for _, text in pictures), pictures


@pytest.mark.slow
def test_landmarks_headings_and_scrolling_parts_have_what_readers_of_screens_need(site):
    """These are what axe-core found in pages of the theme."""
    for path in site.joinpath("docs").rglob("*.html"):
        text = path.read_text()
        assert 'role="heading" aria-level="2"' in text
        assert not re.search(
            r'role="heading">|<aside class="|<pre>|<div class="table-wrapper', text
        )


@pytest.mark.slow
def test_the_site_builds_and_every_link_leads_somewhere(site):
    assert len([*site.rglob("*.html")]) > 25
    assert not [*broken(site)]
    start = Links((site / "docs" / "index.html").read_text()).targets
    assert {place.replace(".md", ".html") for place, _ in QUESTIONS.values()} <= {*start}
