"""`atomo explain`: what a step would take with each codec and communicator, before it is run."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from atomo.arguments import parse
from atomo.cli.explain_options import (
    DESCRIPTION,
    ExplainOptions,
    communicators_of,
    left_out,
    ways_of,
)
from atomo.cli.explain_profile import profile_of, setting_of
from atomo.cli.explain_run import explain_run
from atomo.codecs import make_codec
from atomo.launch.probes import probed
from atomo.launch.text import bytes_text
from atomo.planning import (
    Costs,
    Profile,
    Setting,
    measure_costs,
)
from atomo.planning.comparison import (
    DENSE,
    OTHER_SIZES,
    Compared,
    compared,
    compresses,
    fastest_ways,
)
from atomo.planning.curves import draw
from atomo.plotting import pyplot_for
from atomo.quantities import speed_text

__all__ = ["Compared", "ExplainOptions", "main"]

WIDTH: Final = 150  # characters, of files and pipes
Measured = Sequence[tuple[Costs, str]]
"""Costs of codecs, each with a communicator that they go with."""


def main(words: Sequence[str]) -> int:
    """Measures, predicts and prints."""
    if words and not words[0].startswith("-"):
        return explain_run(Path(words[0]), parsed(words[1:]))
    options = parsed(words)
    setting, measured = (from_probe if options.probe else from_here)(options)
    found = sorted(compared(setting, measured), key=lambda one: one.step_s)
    if options.json:
        sys.stdout.write(json.dumps(document(options, setting, found), indent=2) + "\n")
    else:
        Console(width=None if sys.stdout.isatty() else WIDTH).print(table(setting, found, options))
        sys.stdout.write(verdict(found, options))
        sys.stdout.writelines(
            f"Without {name}: {why}.\n" for name, why in left_out(options).items()
        )
    if options.png:
        draw(options.png, setting, fastest_ways(measured, found))
    return 0


def parsed(words: Sequence[str]) -> ExplainOptions:
    """The options. Raises ConfigError for what is wrong with them before anything is measured."""
    options = parse(ExplainOptions, words, "explain", DESCRIPTION)
    if options.png:
        pyplot_for(options.png)
    _ = options.link
    return options


def from_here(options: ExplainOptions) -> tuple[Setting, Measured]:
    """Measures on this machine; links are as described."""
    profile = profile_of(options)
    setting = setting_of(options, profile)
    return setting, [*measurements(options, profile)]


def from_probe(options: ExplainOptions) -> tuple[Setting, Measured]:
    """Of the job that a probe measured: what its ranks share is in the figures."""
    found = probed(options, [*ways_of(options)])
    asked = {*ways_of(options)}
    return found.setting(options.workers, options.link), [
        (costs, name)
        for reduction, costs in found.costs
        if (costs.spec, reduction) in asked
        for name in communicators_of(options, costs.spec, reduction)
    ]


def measurements(options: ExplainOptions, profile: Profile) -> Iterator[tuple[Costs, str]]:
    """The costs of each codec, and a communicator that it goes with."""
    for spec, reduction in ways_of(options):
        codec = make_codec(spec)
        costs = measure_costs(codec, reduction, profile.gradient, options.repetitions)
        for name in communicators_of(options, spec, reduction):
            yield costs, name


def document(
    options: ExplainOptions, setting: Setting, found: Sequence[Compared]
) -> dict[str, Any]:
    """Everything, for programs. What pays everywhere has null as its bound."""
    rows = [asdict(one) for one in found]
    for row in rows:
        row["pays_below"] = None if math.isinf(row["pays_below"]) else row["pays_below"]
    return {
        "options": asdict(options),
        "parameters": sum(setting.profile.sizes) // 4,
        "compute_s": setting.compute_s,
        "compress": compresses(found),
        "left_out": left_out(options),
        "steps": rows,
    }


def table(setting: Setting, found: Sequence[Compared], options: ExplainOptions) -> Table:
    """One row a codec and communicator, the fastest first."""
    entries = sum(setting.profile.sizes) // 4
    links = f"{options.bandwidth}, {options.latency}"
    if options.per_host > 1:
        links = f"{options.per_host} a host, hosts over {links}"
    if setting.measured:
        links = f"links as in {options.probe}"
    title = (
        f"{options.network}, {entries:,} parameters: a step's passes take "
        f"{1e3 * setting.compute_s:.0f} ms; {options.workers} workers, {links}"
    )
    inside = ["hosts"] if options.per_host > 1 else []
    out = Table(title=title)
    for column in (
        "--code", "--comm-type", *inside, "ms", "link", "codec", "sent", "--fusion",
        "to bf16", "pays below", *(f"ms: {n}" for n in OTHER_SIZES),
    ):  # fmt: skip
        out.add_column(column, justify="left" if column.startswith("--") else "right")
    for one in found:
        out.add_row(
            one.code,
            one.communicator,
            *([f"of {options.per_host}" * one.hierarchical] if inside else []),
            f"{1e3 * one.step_s:.1f}",
            f"{1e3 * one.link_s:.1f}",
            f"{1e3 * one.codec_s:.1f}",
            bytes_text(one.sent_bytes),
            one.fusion,
            f"{one.to_base:.2f}x",
            speed_text(one.pays_below),
            *(f"{1e3 * seconds_:.0f}" for seconds_ in one.steps_s.values()),
        )
    return out


def way(one: Compared, options: ExplainOptions) -> str:
    """As `atomo train` is told."""
    inside = f"--hierarchical {options.per_host} " if one.hierarchical else ""
    return f"{inside}--comm-type {one.communicator}"


def verdict(found: Sequence[Compared], options: ExplainOptions) -> str:
    """The answer in a sentence or two."""
    first = found[0]
    how = f"{way(first, options)} --code '{first.code}' --fusion {first.fusion}"
    if not compresses(found):
        dense = next(one for one in found if one.code in DENSE)
        plain = f"{way(dense, options)} --code {dense.code}"
        return f"Do not compress: nothing gains 2 % on {plain} --fusion {dense.fusion}.\n"
    rest = speed_text(first.pays_below)
    gain = f"{first.to_base:.2f} times as fast as bf16 over Allreduce"
    bound = "on links of any speed" if rest == "any" else f"on links below {rest}"
    return (
        f"Fastest: {how}, {gain}; it pays {bound}.\n"
        "What a codec loses is not in these figures: docs/convergence.md says which keep the "
        "accuracy.\n"
    )
