"""`atomo explain`: predicts the time of a step with each codec and communicator."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from atomo.cli.explanation.effects import EXPLAIN_EFFECTS, OF_RUN
from atomo.cli.explanation.inputs import profile_of, scenario_of
from atomo.cli.explanation.options import (
    DESCRIPTION,
    ExplainOptions,
    codec_reductions,
    communicators_of,
    parse_codecs,
    skipped_communicators,
)
from atomo.cli.explanation.page import check_page, write_explanation
from atomo.cli.explanation.rounds_table import rounds_table, rounds_verdict
from atomo.cli.explanation.run import explain_run, with_enclosing_run
from atomo.cli.explanation.table import document, links_text, table, verdict
from atomo.codecs import make_codec
from atomo.config.effect_tables import Effect, build_reporting_idle
from atomo.core.arguments import parse_arguments
from atomo.core.plotting import pyplot_for
from atomo.core.visible import visible
from atomo.errors import ConfigError
from atomo.launch.console import report_console
from atomo.launch.jobs.probes import obtain_probe
from atomo.planning import (
    Costs,
    Profile,
    Scenario,
    measure_costs,
)
from atomo.planning.comparison import (
    Comparison,
    compare,
    fastest_methods,
)
from atomo.planning.compression_errors import measure_compression_errors
from atomo.planning.curves import draw
from atomo.planning.local_rounds import LocalRound, compare_rounds, parse_every
from atomo.workloads.models import is_foreign

__all__ = ["Comparison", "ExplainOptions", "main"]

WIDTH: Final = 150  # characters, of files and pipes
Measured = Sequence[tuple[Costs, str]]
"""Costs of codecs, each with a communicator that can use the codec."""


def main(words: Sequence[str]) -> int:
    """Measures, predicts and prints."""
    if words and not words[0].startswith("-"):
        if not is_network(words[0]):
            return explain_run(Path(words[0]), parse_options(words[1:], OF_RUN))
        words = ["--network", *words]
    options = with_enclosing_run(parse_options(words))
    scenario, measured = (predict_from_probe if options.probe else measure_here)(options)
    errors = errors_on(options, scenario.profile) if options.real_gradient else {}
    comparisons = sorted(
        compare(scenario, measured, errors), key=lambda comparison: comparison.step_s
    )
    rounds = rounds_of(scenario, measured, options)
    if options.json:
        everything = document(options, scenario, comparisons, rounds)
        sys.stdout.write(json.dumps(everything, indent=2) + "\n")
    elif rounds:
        links = links_text(scenario, options)
        report_console(WIDTH).print(rounds_table(scenario, rounds, options, links))
        sys.stdout.write(visible(rounds_verdict(scenario, rounds)))
    else:
        report_console(WIDTH).print(table(scenario, comparisons, options))
        sys.stdout.write(visible(verdict(comparisons, options)))
        sys.stdout.writelines(
            f"Without {name}: {why}.\n" for name, why in skipped_communicators(options).items()
        )
    if options.png:
        draw(options.png, scenario, fastest_methods(measured, comparisons))
    if options.html:
        methods = fastest_methods(measured, comparisons)
        write_explanation(scenario, comparisons, methods, options)
    return 0


def rounds_of(scenario: Scenario, measured: Measured, options: ExplainOptions) -> list[LocalRound]:
    """Predicts rounds of local steps, the shortest first; none without `--local-steps`."""
    if not options.local_steps:
        return []
    rounds = compare_rounds(scenario, measured, parse_every(options.local_steps))
    return sorted(rounds, key=lambda row: (row.needed, row.step_s))


def is_network(word: str) -> bool:
    """True if the word names a model of another package, and not the folder of a run.

    Raises:
        ConfigError: the word names a file, which may hold weights or gradients.
    """
    if Path(word).is_file():
        raise ConfigError(f"{word} is a file: give --weights {word} or --gradient {word}")
    return is_foreign(word) and not Path(word).exists()


def parse_options(
    words: Sequence[str], effects: Mapping[str, Effect[ExplainOptions]] = EXPLAIN_EFFECTS
) -> ExplainOptions:
    """Returns the options. Raises ConfigError for wrong options, before the measurements."""
    build = build_reporting_idle(ExplainOptions, effects, "explain")
    options = parse_arguments(ExplainOptions, words, "explain", DESCRIPTION, build)
    if options.png:
        pyplot_for(options.png)
    if options.html:
        check_page(options.html)
    _ = options.link
    return options


def measure_here(options: ExplainOptions) -> tuple[Scenario, Measured]:
    """Measures on this machine; the options describe the links."""
    profile = profile_of(options)
    scenario = scenario_of(options, profile)
    return scenario, [*measurements(options, profile)]


def predict_from_probe(options: ExplainOptions) -> tuple[Scenario, Measured]:
    """Predicts the job that a probe measured; its costs include contention inside a host."""
    probe = obtain_probe(options, [*codec_reductions(options)])
    requested = {*codec_reductions(options)}
    return probe.scenario(options.workers, options.link), [
        (costs, name)
        for reduction, costs in probe.costs
        if (costs.spec, reduction) in requested
        for name in communicators_of(options, costs.spec, reduction)
    ]


def measurements(options: ExplainOptions, profile: Profile) -> Iterator[tuple[Costs, str]]:
    """Yields the costs of each codec with each communicator that can use it."""
    for spec, reduction in codec_reductions(options):
        codec = make_codec(spec)
        costs = measure_costs(codec, reduction, profile.gradient, options.repetitions)
        for name in communicators_of(options, spec, reduction):
            yield costs, name


def errors_on(options: ExplainOptions, profile: Profile) -> dict[str, float]:
    """Measures the error of each codec on a gradient, by its full name."""
    return {
        spec: sum(measure_compression_errors(codec, profile.gradient).errors)
        for spec, codec in parse_codecs(options).items()
    }
