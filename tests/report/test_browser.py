"""Pages in a browser: no request, no message of the console, nothing that is cut off, and no
violation that axe-core finds, in light and dark.

Chromium is a package of the system, and may be missing; `test_run_page.py` checks the structure of
pages without it.
"""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.run_folders import write_run

from atomo.config.settings import Settings
from atomo.report.comparison_page import comparison_html
from atomo.report.run_page import run_html

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="NOT TESTED: chromium is not installed"),
]
POLICY = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>")
DARK = ("--blink-settings=preferredColorScheme=0",)


def browse(page: Path, folder: Path, *options: str) -> tuple[str, str]:
    """Opens a page in a browser; returns its document, and the messages of the browser."""
    command = [
        str(BROWSER), "--headless", "--disable-gpu", "--no-first-run", "--enable-logging=stderr",
        "--log-level=0", f"--user-data-dir={folder / 'profile'}", "--dump-dom",
        *(["--no-sandbox"] if os.geteuid() == 0 else []), *options, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return done.stdout, done.stderr


@pytest.fixture
def page(tmp_path):
    """The page of a run with every section."""
    changes = {
        5: {"round": 1, "round_steps": 5, "outer_rate": 0.7, "correlation": 0.1},
        6: {"refused": 1, "refused_from": [1], "refused_for": ["checksum"], "workers": 1},
    }
    folder = write_run(tmp_path / ("a long name of a run " * 5), changes=changes)
    events = [{"event": "Caution", "text": "x" * 300, "at": 1e9},
              {"event": "Launched", "command": "atomo train " + "--option value " * 20},
              {"event": "RankTimes", "rank": [*range(1, 65)], "compute_s": [0.1] * 64,
               "encode_s": [0.01] * 64}]  # fmt: skip
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    path = tmp_path / "page.html"
    path.write_text(run_html(folder))
    return path


def measured(page: Path, tmp_path: Path, script: str, *options: str) -> str:
    """Returns the result of a script in a page whose policy would forbid it."""
    text = POLICY.sub("", page.read_text())
    mark = f'<pre id="measured"></pre><script>{script}</script>'
    copy = tmp_path / "measured.html"
    copy.write_text(text.replace("</body>", f"{mark}</body>"))
    document, _ = browse(copy, tmp_path, *options)
    result = re.search(r'<pre id="measured">(.*?)</pre>', document, re.DOTALL)
    assert result
    return html.unescape(result[1])


def test_a_page_requests_nothing_and_writes_nothing_to_the_console(page, tmp_path):
    log = tmp_path / "net.json"
    _, messages = browse(page, tmp_path, f"--log-net-log={log}")
    assert "CONSOLE" not in messages
    addresses = set(re.findall(r'"url":"([^"]+)"', log.read_text()))
    own = {url for url in addresses if "page.html" in url or url.startswith("data:")}
    others = addresses - own
    # The browser itself asks for updates of its lists; the page has none of these addresses.
    assert all(not url.startswith(("file:", "ftp:", "ws:")) for url in others)
    assert not [url for url in others if url in page.read_text()]


@pytest.mark.parametrize("width", [320, 768, 1280])
def test_no_width_makes_the_page_scroll_sideways(page, tmp_path, width):
    # The window of a headless browser has at least 500 pixels; a frame has as few as we ask for.
    frame = tmp_path / "frame.html"
    inner = POLICY.sub("", page.read_text())
    script = "document.title = document.documentElement.scrollWidth + ' ' + innerWidth"
    (tmp_path / "inner.html").write_text(
        inner.replace(
            "</body>",
            f"<script>{script}; parent.postMessage(document.title, '*')</script></body>",
        )
    )
    frame.write_text(
        "<script>onmessage = e => document.title = e.data</script>"
        f'<iframe src="inner.html" style="width:{width}px;height:600px;border:0"></iframe>'
    )
    document, _ = browse(frame, tmp_path, "--virtual-time-budget=10000")
    needed, shown = map(int, re.search(r"<title>(\d+) (\d+)</title>", document).groups())
    assert shown == width
    assert needed <= width


def test_texts_of_pictures_lie_within_them(page, tmp_path):
    script = """
    const cut = [];
    for (const picture of document.querySelectorAll("figure svg")) {
      const frame = picture.getBoundingClientRect();
      for (const text of picture.querySelectorAll("text")) {
        const box = text.getBoundingClientRect();
        if (box.left < frame.left - 1 || box.right > frame.right + 1
            || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
          cut.push(text.textContent);
      }
      const labels = [...picture.querySelectorAll("text")].map(t => t.getBoundingClientRect());
      labels.forEach((a, i) => labels.slice(i + 1).forEach(b => {
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3
            && b.top < a.bottom - 3)
          cut.push("overlap in " + picture.querySelector("title").textContent);
      }));
    }
    document.getElementById("measured").textContent = JSON.stringify(cut);
    """
    assert json.loads(measured(page, tmp_path, script, "--window-size=1280,1000")) == []


def as_printed(page: Path) -> str:
    """Returns a page that has on a screen the style of its print."""
    assert page.read_text().count("@media print") == 1
    return page.read_text().replace("@media print", "@media all")


@pytest.mark.parametrize(
    ("kind", "options"),
    [("run", ()), ("run", DARK), ("comparison", ()), ("comparison", DARK), ("printed", DARK)],
    ids=["run-light", "run-dark", "comparison-light", "comparison-dark", "printed"],
)
def test_axe_finds_nothing(page, tmp_path, kind, options):
    package = pytest.importorskip("axe_core_python", reason="NOT TESTED: no axe-core-python here")
    if kind == "printed":
        page.write_text(as_printed(page))
    if kind == "comparison":
        runs = [write_run(tmp_path / n, settings=Settings(code=n)) for n in ("topk", "qsgd", "sgd")]
        page.write_text(comparison_html(runs))
    axe = (Path(package.__file__).parent / "axe.min.js").read_text()
    script = (
        axe.replace("</script", "<\\/script")
        + """
    axe.run(document).then(found => document.getElementById("measured").textContent =
      JSON.stringify(found.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 200))])));
    """
    )
    result = measured(page, tmp_path, script, "--virtual-time-budget=60000", *options)
    # The element of the result is the test's own, and outside of all landmarks.
    violations = [v for v in json.loads(result) if not all('id="measured"' in n for n in v[1])]
    assert violations == []


def test_a_page_prints(page, tmp_path):
    path = tmp_path / "page.pdf"
    browse(page, tmp_path, f"--print-to-pdf={path}")
    assert path.read_bytes().startswith(b"%PDF")
    assert path.stat().st_size > 10_000


def test_a_table_and_its_header_stay_on_one_printed_page(page, tmp_path):
    page.write_text(as_printed(page))
    script = """
    const tables = [...document.querySelectorAll("table")];
    const breaks = tables.map(table => getComputedStyle(table).breakInside);
    document.getElementById("measured").textContent = JSON.stringify(breaks);
    """
    breaks = json.loads(measured(page, tmp_path, script))
    assert len(breaks) > 3
    assert {*breaks} == {"avoid"}  # a table longer than a page is broken all the same


def test_the_colour_scheme_of_the_reader_is_used(page, tmp_path):
    script = 'document.getElementById("measured").textContent = ' \
             "getComputedStyle(document.body).backgroundColor"  # fmt: skip
    light = measured(page, tmp_path, script, "--blink-settings=preferredColorScheme=1")
    assert light == "rgb(255, 255, 255)"
    assert measured(page, tmp_path, script, *DARK) == "rgb(20, 23, 26)"
