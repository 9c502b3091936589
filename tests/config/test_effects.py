"""Every option is read, or a line says that it is not."""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest

from atomo.cli import bench, sweep, throughput
from atomo.cli import inspect_gradient as inspect
from atomo.cli.bench import BenchOptions
from atomo.cli.explanation import effects as explain_effects
from atomo.cli.explanation.options import ExplainOptions
from atomo.cli.inspect_gradient import InspectOptions
from atomo.config.effect_tables import ALWAYS, build_reporting_idle
from atomo.config.effects import TRAIN_EFFECTS
from atomo.config.settings import Settings
from atomo.core.arguments import flag, parse_arguments
from atomo.errors import ConfigError
from atomo.launch.cli_settings import parse_cli_settings

TABLES: list[tuple[type[Any], Mapping[str, Any]]] = [
    (Settings, TRAIN_EFFECTS),
    (Settings, throughput.EFFECTS),
    (Settings, sweep.EFFECTS),
    (BenchOptions, bench.BENCH_EFFECTS),
    (InspectOptions, inspect.INSPECT_EFFECTS),
    (ExplainOptions, explain_effects.EXPLAIN_EFFECTS),
    (ExplainOptions, explain_effects.OF_RUN),
]


@pytest.mark.parametrize(("options", "table"), TABLES)
def test_a_table_has_every_option_of_its_command(options, table):
    assert set(table) == {field.name for field in fields(options)}


def notes_of(*words: str, table: Mapping[str, Any] = TRAIN_EFFECTS) -> list[str]:
    """Returns the notes that a command line of `atomo train` gets on its options."""
    lines: list[str] = []
    parse_cli_settings(words, "train", "").check(lines.append, table)
    return lines


# A command line in which each option that depends on others is read, and one in which it is not.
READ = {
    "test_batch_size": ("200", "", "--evaluator=none"),
    "momentum": ("0.5", "", "--optimizer=adam"),
    "noise_damping": ("yes", "", "--code=topk"),
    "lr_shrink_freq": ("9", "--lr-shrinkage=0.9", ""),
    "lr_warmup_from": ("0.2", "--lr-warmup-epochs=1", ""),
    "lr_step_epochs": ("3", "--schedule=step", "--schedule=cosine"),
    "lr_milestones": ("3,6", "--schedule=multistep", ""),
    "lr_gamma": ("0.5", "--schedule=step", "--schedule=linear"),
    "lr_end": ("0.1", "--schedule=Cosine", "--schedule=step"),
    "lr_by_epoch": ("yes", "--schedule=step", ""),
    "error_budget": ("0.1", "--code=auto", ""),
    "compress_ratio": ("0.01", "--code=topk", "--code=svd"),
    "auto_share": ("0.5", "--fusion=auto", ""),
    "svd_rank": ("2", "", "--code=qsgd"),
    "quantization_level": ("4", "--code=qsgd", "--code=qsgd(levels=3)"),
    "bucket_size": ("256", "--code=qsgd", "--code-schedule=0:qsgd"),
    "fusion_mb": ("2", "", "--fusion=layer"),
    "blosc_level": ("9", "", "--blosc-codec=none"),
    "blosc_shuffle": ("bit", "", "--blosc-codec=none"),
    "log_interval": ("5", "", "--log-format=atomo"),
    "max_strikes": ("2", "", "--comm-type=Allgather"),
    "local_seconds": ("2", "--local-steps=4 --comm-type=Allgather", ""),
    "outer": ("sgd(lr=1)", "--local-steps=4 --comm-type=Allgather", ""),
    "outer_mean": ("senders", "--local-steps=4 --comm-type=Allgather", ""),
    "fragments": ("2", "--local-steps=4 --comm-type=Allgather", ""),
    "overlap": ("1", "--local-steps=4 --comm-type=Allgather", ""),
    "mix": ("0.5", "--local-steps=4 --comm-type=Allgather", ""),
}


def test_every_option_that_depends_on_others_has_both_cases_here():
    assert set(READ) == {name for name, effect in TRAIN_EFFECTS.items() if effect is not ALWAYS}


@pytest.mark.parametrize("name", READ)
def test_an_option_that_is_not_read_is_refused_or_warned_of_and_one_that_is_read_is_not(name):
    value, read, idle = READ[name]
    word = f"{flag(name)}={value}"
    assert notes_of(word, *read.split()) == []
    message = rf"{flag(name)} \S+ has no effect: .*(leave|give)"
    if TRAIN_EFFECTS[name].refused:
        with pytest.raises(ConfigError, match=message):
            notes_of(word, *filter(None, [idle]))
    else:
        (line,) = notes_of(word, *filter(None, [idle]))
        assert re.match(message, line)


def test_defaults_and_values_that_ask_for_nothing_never_warn():
    assert notes_of() == []
    assert notes_of("--optimizer=adam", "--momentum=0", "--noise-damping=no", "--fusion=auto") == []
    published = "--svd-rank=3", "--quantization-level=4", "--bucket-size=512"
    assert notes_of("--code=sgd", *published) == [
        "--svd-rank 3, --quantization-level 4, --bucket-size 512 have no effect: --code sgd reads "
        "none of it; leave it out, or give a codec that does"
    ]


def test_a_network_that_had_batch_norm_elsewhere_is_named():
    assert notes_of("--network=VGG11") == [
        "--network VGG11 has no batch norm; the VGG11 of ATOMO had it: --network VGG11_BN"
    ]
    assert notes_of("--network=VGG11_BN") == []


def test_what_files_say_is_not_held_against_a_command_line(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('schedule = "multistep"\nlr_milestones = "3"\nlr_gamma = 0.5\n')
    assert notes_of("--config", str(file), "--schedule=cosine") == []
    with pytest.raises(
        ConfigError, match=r"--lr-gamma 0.1 has no effect: --schedule step or multi"
    ):
        notes_of("--config", str(file), "--schedule=cosine", "--lr-gamma=0.1")


@pytest.mark.parametrize("name", ["max_steps", "epochs", "train_dir", "resume", "eval_freq"])
def test_throughput_says_what_of_a_run_it_sets_itself(name):
    word = f"{flag(name)}={ {'train_dir': 'x', 'resume': 'never'}.get(name, '5') }"
    if throughput.EFFECTS[name].refused:
        with pytest.raises(ConfigError, match=rf"{flag(name)} 5 has no effect: --num-warmup-batch"):
            notes_of(word, table=throughput.EFFECTS)
    else:
        (line,) = notes_of(word, table=throughput.EFFECTS)
        assert line.startswith(f"{flag(name)} ")


def test_a_codec_that_serves_in_no_step_is_refused_and_the_schedule_is_what_is_trained():
    with pytest.raises(ConfigError, match=r"no step uses --code qsgd: --code-schedule '0: sgd"):
        notes_of("--code=qsgd", "--code-schedule=0: sgd")
    assert notes_of("--code=qsgd", "--code-schedule=0: sgd; 2: qsgd") == []
    assert notes_of("--code=qsgd", "--code-schedule=2: sgd") == []
    run = parse_cli_settings(["--code-schedule=0: sgd; 1: fp16"], "train", "").settings.resolved()
    assert run.code == "fp16"  # and not the default, which serves in no step


def test_other_commands_say_so_too(capsys):
    build = build_reporting_idle(BenchOptions, bench.BENCH_EFFECTS, "bench")
    parse_arguments(BenchOptions, ["--tensor=x", "--network=FC"], "bench", "", build)
    assert capsys.readouterr().err == (
        "atomo bench: caution: --network FC has no effect: the gradient is read from --tensor x; "
        "leave one of the two out\n"
    )
    build = build_reporting_idle(ExplainOptions, explain_effects.EXPLAIN_EFFECTS, "explain")
    with pytest.raises(ConfigError, match=r"--hostfile h has no effect: .* --probe FILE"):
        parse_arguments(ExplainOptions, ["--hostfile=h"], "explain", "", build)
    assert (
        parse_arguments(ExplainOptions, ["--hostfile=h", "--probe=p"], "explain", "", build).probe
        == "p"
    )
    build = build_reporting_idle(ExplainOptions, explain_effects.OF_RUN, "explain")
    parse_arguments(ExplainOptions, ["--code=topk"], "explain", "", build)
    assert "--code topk has no effect: the run says it" in capsys.readouterr().err
