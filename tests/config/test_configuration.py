"""Settings are parsed from command lines and printed as command lines; errors name the invalid
value.
"""

import re
from dataclasses import fields, replace
from typing import get_args, get_type_hints

import pytest
from support import harness as support

from atomo.config.bounds import BOUNDS
from atomo.config.identity import METHOD, STATE, WEIGHTS, check_identity, record
from atomo.config.settings import Settings
from atomo.core.arguments import flag, parse_arguments, to_arguments
from atomo.errors import ConfigError
from atomo.training.job.job import make_job

PUBLISHED = {
    "n": ("3", 3),
    "hostfile": ("hosts_address", "hosts_address"),
    "lr": ("0.01", 0.01),
    "momentum": ("0.9", 0.9),
    "network": ("ResNet18", "ResNet18"),
    "dataset": ("Cifar10", "Cifar10"),
    "batch-size": ("128", 128),
    "test-batch-size": ("200", 200),
    "comm-type": ("Bcast", "Bcast"),
    "num-aggregate": ("2", 2),
    "eval-freq": ("200", 200),
    "epochs": ("10", 10),
    "max-steps": ("1000000", 1_000_000),
    "svd-rank": ("3", 3),
    "quantization-level": ("4", 4),
    "bucket-size": ("512", 512),
    "code": ("svd", "svd"),
    "enable-gpu": ("", ""),
    "train-dir": ("runs/x", "runs/x"),
    "lr-shrinkage": ("0.95", 0.95),
    "seed": ("7", 7),
    "log-interval": ("20", 20),
}


def read(*words: str) -> Settings:
    return parse_arguments(Settings, words, "train", "")


@pytest.mark.parametrize("apart", [True, False], ids=["--a b", "--a=b"])
def test_every_option_of_the_published_scripts_is_understood(apart):
    words = [
        word
        for name, (text, _) in PUBLISHED.items()
        for word in ([f"--{name}", text] if apart else [f"--{name}={text}"])
    ]
    settings = read(*words)
    assert {name: getattr(settings, name.replace("-", "_")) for name in PUBLISHED} == {
        name: value for name, (_, value) in PUBLISHED.items()
    }
    untouched = {f.name for f in fields(Settings)} - {n.replace("-", "_") for n in PUBLISHED}
    assert all(getattr(settings, name) == getattr(Settings(), name) for name in untouched)


def test_resolved_settings_say_in_one_code_what_the_published_flags_say():
    settings = read("--code=svd", "--svd-rank=5", "--quantization-level=4", "--bucket-size=512")
    assert settings.resolved() == read("--code", "svd(rank=5)").resolved()
    assert settings.resolved().svd_rank is None
    assert "rank=5" in settings.resolved().code
    assert settings.resolved().resolved() == settings.resolved()


def test_a_flag_may_repeat_what_the_code_says_but_not_contradict_it():
    assert read("--code=svd(rank=4)", "--svd-rank=4").resolved().code == str(
        read("--code=svd(rank=4)").resolved().code
    )
    with pytest.raises(ConfigError, match=r"svd\(rank=3\).* contradicts the flag .* rank=4"):
        read("--code=svd(rank=3)", "--svd-rank=4").resolved()


def test_nothing_is_left_to_defaults():
    settings = read("--n=5").resolved()
    assert (settings.num_aggregate, settings.memory) == (4, "none")
    assert read("--code=fp16").resolved().memory == "residual"
    assert read("--memory=NONE", "--optimizer=SGD", "--comm-type=bcast").resolved().memory == "none"


def test_a_command_line_of_settings_reads_back_as_the_same_settings():
    words = ["--nesterov=yes", "--image-size=32", "--lr=1e-3", "--mpi-args=--mca btl self,tcp"]
    words += ["--train-dir=a folder/x=y", "--enable-gpu=yes", "--num-aggregate=1", "--momentum=0.5"]
    for settings in (Settings(), read(*words), read(*words).resolved()):
        assert read(*to_arguments(settings)) == settings
    assert to_arguments(Settings()) == []


CHECKED_ELSEWHERE = {"num_aggregate", "blosc_level"}


def test_every_number_has_a_range():
    hints = get_type_hints(Settings)
    numbers = {name for name, kind in hints.items() if {int, float} & {kind, *get_args(kind)}}
    assert numbers - set(BOUNDS) == CHECKED_ELSEWHERE


@pytest.mark.parametrize("name", BOUNDS)
def test_a_number_beyond_its_range_is_refused_with_the_reason(name):
    bound, whole = BOUNDS[name], int in {(kind := get_type_hints(Settings)[name]), *get_args(kind)}
    huge = [f"{10**30}"] if whole else ["1e300", "inf"]
    for text in huge:
        with pytest.raises(
            ConfigError,
            match=rf"{flag(name)} must be (at most|below) .*: {re.escape(bound.why_most)}",
        ):
            read(f"{flag(name)}={text}")
    for text in ("-1",) if whole else ("-1", "-inf", "nan"):
        with pytest.raises(
            ConfigError, match=rf"{flag(name)} must be (at least|above) {bound.least}"
        ):
            read(f"{flag(name)}={text}")


@pytest.mark.parametrize("word", ["1e308: sgd", "inf: sgd", "nan: sgd", "1e16: sgd"])
def test_an_epoch_that_never_comes_is_no_phase(word):
    with pytest.raises(ConfigError, match=f"cannot read '{word}'"):
        read(f"--code-schedule={word}").resolved()


def test_a_learning_rate_that_grows_beyond_float32_is_refused_before_the_first_step(tmp_path):
    grows = {"lr_shrinkage": 2.0, "lr_shrink_freq": 1, "n": 2, "network": "FC"}
    make_job(support.settings(tmp_path, max_steps=100, **grows), 2)
    with pytest.raises(ConfigError, match=r"--lr 0.02 times --lr-shrinkage 2 every 1 .* step 200"):
        make_job(support.settings(tmp_path, max_steps=200, **grows), 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--n=1", r"--n must be at least 2, got 1: 1 master and at least 1 worker"),
        ("--svd-rank=-1", r"--svd-rank must be at least 0, got -1"),
        ("--num-aggregate=3", r"--num-aggregate 3: .* 2 workers \(--n 3 less the master\)"),
        ("--num-aggregate=-1", r"give 1\.\.2, or 0 for all"),
        (
            "--spares=1 --comm-type=PowerSGD",
            r"--spares 1: with --comm-type PowerSGD a spare cannot",
        ),
        (
            "--spares=1 --comm-type=Allgather --hierarchical=2",
            r"Allgather --hierarchical 2 a spare",
        ),
        ("--lr=0", r"--lr must be above 0, got 0"),
        ("--lr=nan", r"--lr must be above 0, got nan"),
        ("--momentum=nan", r"--momentum must be at least 0, got nan"),
        ("--batch-size=0", r"--batch-size must be at least 1, got 0"),
        ("--epochs=0", r"--epochs must be at least 1"),
        ("--max-steps=0", r"--max-steps must be at least 1"),
        ("--timeout=0", r"--timeout must be above 0"),
        ("--seed=-1", r"--seed must be at least 0"),
        ("--n=three", r"--n: 'three' is not a whole number"),
        ("--lr=fast", r"--lr: 'fast' is not a number"),
        ("--nesterov=maybe", r"--nesterov: 'maybe' is neither yes nor no"),
        ("--nesterov=yes --momentum=0", r"--nesterov needs --optimizer sgd and --momentum above"),
        ("--ema-decay=1", r"--ema-decay must be below 1, got 1.0: the average would never move"),
        ("--momentum=1", r"--momentum must be below 1, got 1.0"),
        ("--label-smoothing=1", r"--label-smoothing must be below 1, got 1.0"),
        ("--resume=", r"--resume is empty; give auto, anyway, never, or the folder of a run"),
        ("--data-dir=", r"--data-dir is empty; give a folder"),
        ("--lr=-1", r"--lr must be above 0, got -1"),
        ("--lr -.5", r"--lr must be above 0, got -0.5"),
        ("--blosc-level=10", r"10"),
        ("--blosc-codec=gzip", r"gzip.*known: none, blosclz"),
        ("--svdrank=3", r"unknown option '--svdrank'; did you mean '--svd-rank'\? known: --n,"),
        ("--epoc 3", r"unknown option '--epoc'; did you mean '--epochs'"),
        ("lenet", r"unknown option 'lenet'"),
        ("--lr", r"--lr: expected one argument"),
    ],
)
def test_what_is_wrong_is_named(words, message):
    with pytest.raises(ConfigError, match=message):
        read(*words.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--memory=residual --code=terngrad(scale=shared)", r"goes with memory none, not resid"),
        (
            "--code-schedule=0:terngrad(scale=shared);1:dgc",
            r"code terngrad\(scale=shared\) goes with memory none, not dgc",
        ),
    ],
)
def test_a_scale_is_agreed_on_for_whole_gradients_only(words, message):
    with pytest.raises(ConfigError, match=message):
        read(*words.split()).resolved()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--code=svt", r"unknown .*'svt'; did you mean 'svd'\? known: .*sgd"),
        ("--code=svd(rang=3)", r"rang"),
        ("--memory=residuals", r"unknown memory 'residuals'; did you mean 'residual'\?"),
        ("--optimizer=adma", r"unknown optimizer 'adma'; did you mean 'adam'\? known: sgd, adam"),
        ("--comm-type=Async", r"unknown comm-type 'Async'; known: ParameterServer|did you mean"),
        ("--evaluator=remote", r"unknown evaluator 'remote'; .*known: local, none"),
    ],
)
def test_unknown_names_get_the_nearest_and_all_known_ones(words, message):
    with pytest.raises(ConfigError, match=message):
        read(words).resolved()


def test_spares_are_refused_beside_a_scale_that_all_ranks_agree_on():
    words = "--spares=1", "--code=terngrad(scale=shared)"
    with pytest.raises(
        ConfigError, match=r"--spares 1: .* terngrad\(.*, which needs a scale that all ranks"
    ):
        read(*words, "--comm-type=Allgather").resolved()
    assert read(*words).resolved().spares == read(*words[:1], "--comm-type=Allreduce").spares == 1


def test_help_shows_every_option_with_its_default(capsys):
    with pytest.raises(SystemExit) as ended:
        read("--help")
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert all(flag(field.name) in told for field in fields(Settings))
    assert "(default 0.9)" in told


def test_a_checkpoint_records_what_was_computed_and_not_where(tmp_path):
    kept = record(replace(Settings(), train_dir="x", hostfile="y").resolved())
    assert not kept.keys() & {"train_dir", "hostfile", "data_dir", "mpi_args", "resume"}
    assert kept["seed"] == 1
    check_identity(Settings().resolved(), kept, tmp_path)


@pytest.mark.parametrize("name", [*WEIGHTS, *STATE, *METHOD])
def test_a_run_continues_with_the_settings_that_matter_or_names_the_others(name, tmp_path):
    own = Settings().resolved()
    recorded = record(own) | {name: "other"}
    with pytest.raises(ConfigError, match=rf"{flag(name)} .*\(before: other\)"):
        check_identity(own, recorded, tmp_path)
    anyway = replace(own, resume="anyway")
    if name in WEIGHTS:  # no option makes other weights fit
        with pytest.raises(ConfigError, match="of another model"):
            check_identity(anyway, recorded, tmp_path)
    else:
        assert [text.split()[0] for text in check_identity(anyway, recorded, tmp_path)] == [
            flag(name)
        ]


@pytest.mark.parametrize("name", METHOD)
def test_a_run_that_continues_from_another_folder_may_change_its_codec(name, tmp_path):
    own = replace(Settings().resolved(), resume=str(tmp_path))
    assert check_identity(own, record(own) | {name: "other"}, tmp_path) == []


def test_a_checkpoint_of_the_same_settings_has_no_differences(tmp_path):
    own = Settings().resolved()
    assert check_identity(own, record(own), tmp_path) == []


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("--code=svd", r"code svd\(selection=top\)"),
        ("--code=randk", r"code randk\(unbiased=False\)"),
        ("--code=entrywise", "memory none"),
        ("--code=fourier", "memory none"),
        ("--code=atomo", "memory none"),
        ("--code=countsketch", "memory none"),
        ("--code=qsgd(bits=3)", "memory none"),
        ("--code=terngrad", "memory none"),
        ("--code=signum", "memory none"),
        ("--code=sgd --code-schedule=1:svd", "memory none"),
    ],
)
@pytest.mark.parametrize("memory", ["residual", "dgc"])
def test_an_error_longer_than_the_gradient_is_not_fed_back(words, fix, memory):
    with pytest.raises(ConfigError, match=f"with memory {memory} diverges: .*{fix}"):
        read(*words.split(), f"--memory={memory}").resolved()


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        ("", 0.02),
        ("--optimizer=Adam", 0.001),
        ("--code=signsgd", 0.0001),
        ("--code-schedule=1:signum --optimizer=adam", 0.0001),
        ("--code=auto --optimizer=adam", 0.001),
        ("--code=signsgd --lr=0.3", 0.3),
    ],
)
def test_the_default_learning_rate_is_the_optimizer_s_and_the_codec_s(words, rate):
    assert read(*words.split()).resolved().lr == rate


@pytest.mark.parametrize(
    ("words", "memory"),
    [
        ("--code=topk", "dgc"),
        ("--code=efsignsgd --nesterov=yes", "dgc"),
        ("--code=topk --momentum=0", "residual"),
        ("--code=topk --optimizer=ADAM", "adam"),
        ("--code=fp16", "residual"),
        ("--code=svd", "none"),
        ("--code=terngrad", "none"),
        ("--code=signum", "momentum"),
        ("--code=randk(unbiased=False)", "residual"),
        # README's own line: what loses next to nothing goes without where svd bears none.
        ("--code-for=bf16:conv1.weight", "none"),
        ("--code=topk --code-for=bf16:conv1.weight", "dgc"),
        ("--code-schedule=0:svd;1:fp16", "none"),
        ("--code-schedule=0:fp16;1:topk", "dgc"),
        ("--comm-type=PowerSGD", "residual"),
        ("--comm-type=ACPSGD", "dgc"),
        ("--comm-type=ACPSGD --momentum=0", "residual"),
        ("--comm-type=ACPSGD --optimizer=adam", "residual"),
        ("--comm-type=PowerSGD --optimizer=adam", "residual"),
        # Adam's update is compressed where that was measured to lose less.
        ("--code=efsignsgd --optimizer=adam", "adam"),
        ("--code=onebit --optimizer=adam --comm-type=Allgather", "adam"),
        ("--code=topk --optimizer=adam --code-for=bf16:conv1.weight", "adam"),
        ("--code-schedule=0:sgd;1:topk --optimizer=adam", "adam"),
        ("--code=topk --optimizer=adam --memory=residual", "residual"),
        ("--code=topk --optimizer=adam --clip-grad=1", "residual"),
        ("--code=svd(selection=top) --optimizer=adam", "residual"),
        ("--code=fp16 --optimizer=adam", "residual"),
        ("--code=dgc --optimizer=adam", "dgc"),
        ("--code=qsgd --optimizer=adam", "none"),
        (
            "--code=svd(selection=top) --optimizer=adam --memory=adam(beta2=0.99)",
            "adam(beta2=0.99)",
        ),
    ],
)
def test_momentum_comes_before_error_feedback(words, memory):
    assert read(*words.split()).resolved().memory == memory


@pytest.mark.parametrize(
    ("words", "nesterov"),
    [
        ("--code=sgd", False),
        ("--code=svd", False),
        ("--code=natural", False),
        ("--code=sgd --memory=dgc", False),
        ("--code=topk", False),
        ("--code=topk --memory=residual", False),
        ("--code=fp16", False),
        ("--code=auto", False),
        ("--code=efsignsgd", True),
        ("--code=efsignsgd --memory=residual", True),
        ("--code=svd(selection=top)", True),
        ("--code=topk --code-for=onebit:conv1.weight", True),
        ("--code=lss --memory=none", False),
        ("--code=lss --momentum=0", False),
        ("--code=lss --optimizer=adam", False),
        ("--code=lss --local-steps=5", False),
        ("--code=lss --nesterov=no", False),
        ("--comm-type=PowerSGD", True),
        ("--comm-type=ACPSGD", True),
        ("--comm-type=PowerSGD --nesterov=no", False),
        ("--comm-type=PowerSGD --code=sgd", False),
        ("--comm-type=PowerSGD --optimizer=adam", False),
    ],
)
def test_momentum_is_nesterov_s_where_every_entry_waits_a_little(words, nesterov):
    assert read(*words.split()).resolved().nesterov is nesterov


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--code=topk", r"--memory adam .*--optimizer sgd steps by gradients; give --optimizer ad"),
        ("--code=topk --optimizer=adam --clip-grad=1", r"--clip-grad 1: .*give --memory residual"),
        ("--code=svd --optimizer=adam", r"memory adam diverges"),
        ("--code=terngrad(scale=shared) --optimizer=adam", r"goes with memory none, not adam"),
        ("--comm-type=PowerSGD --optimizer=adam", r"goes with --memory residual or dgc, not adam"),
    ],
)
def test_a_memory_that_makes_adams_update_is_refused_where_it_cannot(words, message):
    with pytest.raises(ConfigError, match=message):
        read("--memory=adam", *words.split()).resolved()


def test_codecs_that_no_memory_suits_are_refused_with_the_one_that_was_tried():
    with pytest.raises(
        ConfigError, match=r"diverges: .*; --memory auto took dgc, which topk needs"
    ):
        read("--code-for=topk: conv1.weight").resolved()


def test_numbers_of_earlier_checkpoints_are_the_texts_of_today(tmp_path):
    words = "--local-steps=8", "--comm-type=Allgather", "--overlap=2", "--mix=0.50"
    for own, overlap, mix in (Settings().resolved(), 0, 0.0), (read(*words).resolved(), 2, 0.5):
        assert check_identity(own, record(own) | {"overlap": overlap, "mix": mix}, tmp_path) == []
        with pytest.raises(ConfigError, match=r"--mix .*\(before: 0.75\)"):
            check_identity(own, record(own) | {"mix": 0.75}, tmp_path)
