"""The page of `status --html`: hosts, costs over time, interruptions and jobs, in one HTML file.

The page has no scripts and makes no requests; every text is escaped. The commands of clusters start
without the packages of training, so that this page has a writer of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from typing import Final, final

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.money.costs import bill
from atomo_cluster.ec2.money.ledger import LedgerEntry
from atomo_cluster.ec2.money.prices import format_usd
from atomo_cluster.ec2.supervisor.event_log import (
    DONE,
    FAILED,
    JOB,
    LOST,
    RESTART,
    STARTED,
    STOPPED,
    WAITING,
    Event,
    folded,
)
from atomo_cluster.visible import visible

__all__ = ["ClusterStatus", "status_html"]

WIDTH: Final = 560
HEIGHT: Final = 260
LEFT: Final = 66
RIGHT: Final = 20
TOP: Final = 16
BOTTOM: Final = 46
MOMENTS: Final = 120  # of the curve of costs
INTERRUPTIONS: Final = (LOST, WAITING, RESTART)
JOB_KINDS: Final = (JOB, STARTED, DONE, FAILED, STOPPED)
STYLE: Final = """\
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1d21; --soft: #565d66;
  --rule: #d5d9df; --line: #1763b6; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --ink: #e8eaed; --soft: #a8b0ba; --rule: #3a4149; --line: #6aaeff; }
}
body { margin: 0 auto; padding: 1rem; max-width: 64rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, "Liberation Sans", sans-serif; }
h1, p, td, th { overflow-wrap: anywhere; }
h2 { margin-top: 2rem; border-top: 1px solid var(--rule); padding-top: .5rem; font-size: 1.2rem; }
footer, .tick { color: var(--soft); fill: var(--soft); font-size: .85rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
svg { width: 100%; min-width: 22rem; max-width: 40rem; }
svg text { fill: var(--ink); font-size: 13px; }
svg path { fill: none; stroke: var(--rule); }
svg .line { stroke: var(--line); stroke-width: 2; }
@media print { body { max-width: none; } .scroll { overflow: visible; } svg { min-width: 0; } }
"""


@final
@dataclass(frozen=True)
class ClusterStatus:
    """All that the page of a cluster shows."""

    name: str
    owner: str
    region: str
    hosts: Sequence[Instance]
    wanted: int
    """Number of hosts in the settings."""
    lives: Sequence[LedgerEntry]
    """Lives of hosts that the ledger of this machine has, with their prices."""
    story: Sequence[Event]
    """Events of the supervisor."""
    unsaid: Sequence[str]
    """Questions that AWS did not answer."""
    now: datetime


def status_html(status: ClusterStatus) -> str:
    """Returns the page of a cluster."""
    title = escape(f"{status.name}, owner {status.owner}, {status.region}")
    parts = [
        section("Hosts", host_table(status)),
        section("Costs", costs(status)),
        section("Interruptions", event_table(status.story, INTERRUPTIONS, "No host was lost.")),
        section("Jobs", event_table(status.story, JOB_KINDS, "No supervisor has told of a job.")),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    html = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n'
        f"</head>\n<body>\n<header><h1>{title}</h1></header>\n<main>\n{summary_text(status)}"
        f"{''.join(parts)}</main>\n<footer>As of {clock(status.now)}</footer>\n</body>\n</html>\n"
    )
    return visible(html)


def section(heading: str, body: str) -> str:
    """Returns a section with its heading."""
    return f"<section>\n<h2>{heading}</h2>\n{body}</section>\n"


def paragraph(text: str) -> str:
    """Returns a text as a paragraph."""
    return f"<p>{escape(text)}</p>\n"


def summary_text(status: ClusterStatus) -> str:
    """Returns the state of the cluster in a few sentences."""
    sums = bill(status.lives, status.now)
    running = sum(host.state == "running" for host in status.hosts)
    text = f"{running} of {status.wanted} hosts run. They cost {format_usd(sums.usd_per_hour, 4)} "
    text += f"an hour, and {format_usd(sums.usd, 2)} so far, ended hosts included."
    late = [host.id for host in status.hosts if host.past_fuse]
    warnings = [f"Past its fuse: {', '.join(late)}."] if late else []
    warnings += [f"AWS does not say all: {text}" for text in status.unsaid]
    return "".join(map(paragraph, [text, *warnings]))


def host_table(status: ClusterStatus) -> str:
    """Returns the table of hosts."""
    rows = [
        (host.role, host.id, host.type + " spot" * host.spot, host.state, host.zone,
         clock(host.launched), clock(host.fuse) if host.fuse_known else "unknown")
        for host in status.hosts
    ]  # fmt: skip
    columns = ("role", "host", "type", "state", "zone", "launched (UTC)", "fuse (UTC)")
    return table("Hosts", columns, rows) if rows else paragraph("The cluster has no hosts.")


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table; the first column names the row."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{caption}"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def event_table(story: Sequence[Event], kinds: Sequence[str], nothing: str) -> str:
    """Returns the table of some kinds of events; a row of failed requests is one of it."""
    rows = [(event.when, event.kind, event.text) for event in folded(story) if event.kind in kinds]
    return table("Events", ("time", "event", "text"), rows) if rows else paragraph(nothing)


def clock(moment: datetime) -> str:
    """Returns a time in minutes."""
    return moment.strftime("%Y-%m-%d %H:%M")


def costs(status: ClusterStatus) -> str:
    """Returns the curve of costs, and what it counts."""
    points = [*cost_points(status.lives, status.now)]
    if len(points) < 2:
        return paragraph("The ledger has no prices of hosts yet: the command cost looks.")
    text = "Hosts, disks and addresses, by prices of the last command cost; the bill is AWS's."
    return cost_chart(points) + paragraph(text)


def cost_points(lives: Sequence[LedgerEntry], now: datetime) -> Iterator[tuple[float, float]]:
    """Yields hours since the first launch, and the USD that all hosts had cost by then."""
    priced = [life for life in lives if life.usd_per_hour is not None]
    starts = [datetime.fromisoformat(life.launched) for life in priced]
    if not starts or min(starts) >= now:
        return
    span = now - min(starts)
    for moment in range(MOMENTS + 1):
        at = min(starts) + span * moment / MOMENTS
        usd = sum(life.usd(at) or 0.0 for life in priced)
        yield (at - min(starts)) / timedelta(hours=1), usd


def cost_chart(points: Sequence[tuple[float, float]]) -> str:
    """Draws the costs over time."""
    hours, most = points[-1][0], max(max(usd for _, usd in points), 0.01)

    def place(hour: float, usd: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * hour / hours
        return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * usd / most

    line = " ".join(f"{x:.1f} {y:.1f}" for x, y in (place(*point) for point in points))
    marks = []
    for tick in range(5):
        x, y = place(hours * tick / 4, most * tick / 4)
        marks.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        marks.append(chart_text(LEFT - 8, y + 4, f"{most * tick / 4:.2f}", "end", "tick"))
        label = f"{hours * tick / 4:.1f}"
        marks.append(chart_text(x, HEIGHT - BOTTOM + 18, label, "middle", "tick"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    marks.append(chart_text(middle, HEIGHT - 8, "time since the first launch (h)", "middle"))
    marks.append(
        f'<text class="label" transform="translate(14 {(HEIGHT - BOTTOM + TOP) / 2:.0f}) '
        'rotate(-90)" text-anchor="middle">costs (USD)</text>'
    )
    title = "Costs over time"
    text = f"Costs rise to {most:.2f} USD in {hours:.1f} hours."
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{title}">'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="costs costs-text">'
        f'<title id="costs">{title}</title><desc id="costs-text">{text}</desc>'
        f'{"".join(marks)}<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>'
        f'<path class="line" d="M{line}"/></svg></div>\n'
    )


def chart_text(x: int | float, y: int | float, text: str, anchor: str, kind: str = "label") -> str:
    """Returns a text of the chart."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
