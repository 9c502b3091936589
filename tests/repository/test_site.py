"""The pages build as a site without a warning, and every link of the site leads somewhere."""

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]


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


@pytest.mark.slow
def test_the_site_builds_and_every_link_leads_somewhere(site):
    assert len([*site.rglob("*.html")]) > 25
    assert not [*broken(site)]
