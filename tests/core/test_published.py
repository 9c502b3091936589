"""The options of other published systems work, or the error names their replacements.

`python tests/core/test_published.py` prints the table of options for docs/from-other-systems.md.
"""

import sys
from dataclasses import fields
from pathlib import Path

import pytest

from atomo.cli.evaluate import EvaluateOptions, evaluator_settings
from atomo.codecs import CODECS, make_codec
from atomo.config.comm_types import COMM_TYPES
from atomo.config.settings import Settings, wants_gpu
from atomo.core.arguments import flag, parse_arguments, translate_spellings
from atomo.core.names import fold, resolve
from atomo.core.published import ALL, NAMES, OPTIONS
from atomo.errors import ConfigError
from atomo.launch.resolve import canonical_settings
from atomo.workloads.models import MODELS

PAGE = Path(__file__).parents[2] / "docs" / "from-other-systems.md"
OURS = [flag(field.name) for field in fields(Settings)]
NO = ("", "no", "No", "False", "false", "0", "off")
YES = ("yes", "True", "true", "1", "on")
# As the programs of the published repositories declare them.
PUBLISHED = {
    "ATOMO, LSS_SGD": """--batch-size --test-batch-size --max-steps --epochs --lr --momentum
        --lr-shrinkage --no-cuda --seed --log-interval --network --code --bucket-size --dataset
        --comm-type --num-aggregate --eval-freq --train-dir --compress --enable-gpu --svd-rank
        --quantization-level --tuning-dir --tuning-lr --num-workers -n --hostfile --host""",
    "ps_pytorch": "--mode --kill-threshold --compress-grad",
    "DRACO": "--approach --err-mode --adversarial --worker-fail",
    "DGC": """--configs --devices --evaluate --suffix --configs.seed --configs.train.num_epochs
        --configs.train.batch_size --configs.train.optimizer.lr --configs.dataset.root""",
    "DRAGONN": """--use-adasum --gradient-predivide-factor --fp16-allreduce --compress --compressor
        --compress-ratio --memory --comm --batching --pcie --benchmark --threshold --compress-iter
        --batch_size --test_size --epochs --lr --print_every --net_type --pretrained --dataset
        --seed --test_every --max_steps --hidden_dim --train-dir --val-dir --log-dir
        --checkpoint-format --batches-per-allreduce --base-lr --wd --warmup-epochs
        --val-batch-size --momentum --no-cuda --model --speed-test""",
    "MergeComp": """--num-iters --num-batches-per-iter --num-warmup-batches --fusion-num --adam
        --scheduler --scheduler-baseline --scheduler-epoch --scheduler-step --scheduler-warmup
        --test-batch-size --config-file""",
}


def table() -> str:
    """Returns the options of other systems as the document shows them."""
    rows = [f"| `{spelling.theirs}` | {spelling.systems} | {spelling.ours} |" for spelling in ALL]
    return "\n".join(["| there | in | here |", "| --- | --- | --- |", *rows]) + "\n"


def read(*words: str) -> Settings:
    return parse_arguments(Settings, words, "train", "", Settings.from_recipe)


def test_the_document_has_the_table():
    assert table() in PAGE.read_text(), f"paste this:\n{table()}"


@pytest.mark.parametrize("system", PUBLISHED)
def test_every_published_option_is_there_or_has_a_successor(system):
    for name in PUBLISHED[system].split():
        dashed = name.replace("_", "-")
        assert (dashed in OPTIONS) != (dashed in OURS), name


@pytest.mark.parametrize(
    "spelling",
    [spelling for spelling in ALL if spelling.option],
    ids=lambda spelling: spelling.theirs,
)
def test_what_is_said_to_work_is_one_of_our_options(spelling):
    assert spelling.option in OURS
    assert spelling.theirs not in OURS
    words = [spelling.theirs] if spelling.value else [spelling.theirs, "5"]
    want = [f"{spelling.option}={spelling.value}"] if spelling.value else [spelling.option, "5"]
    assert translate_spellings(words, OURS) == want


@pytest.mark.parametrize(
    "spelling",
    [spelling for spelling in ALL if not spelling.option],
    ids=lambda spelling: spelling.theirs,
)
def test_what_is_gone_names_its_successor(spelling):
    assert spelling.theirs not in OURS
    for option in {spelling.theirs, spelling.theirs[:2] + spelling.theirs[2:].replace("-", "_")}:
        with pytest.raises(ConfigError) as caught:
            read(option, "1")
        assert str(caught.value).startswith(f"unknown option {option!r}; in place of ")
        assert spelling.ours in str(caught.value)


def test_any_key_of_dgcs_settings_names_the_file():
    with pytest.raises(ConfigError, match=r"unknown option '--configs.train.criterion'.*wm5.toml"):
        read("--configs.train.criterion", "x")
    assert read("--configs.train.num_epochs", "500", "--configs.train.optimizer.lr=0.1") == (
        Settings(epochs=500, lr=0.1)
    )


def test_options_take_either_dash_and_published_spellings():
    words = "-n 5 --eval_freq=7 --num_replicas_to_aggregate 3 --no-cuda --wd 0.1 --compressor QSGD"
    assert read(*words.split()) == Settings(
        n=5, eval_freq=7, num_aggregate=3, enable_gpu="no", weight_decay=0.1, code="QSGD"
    )
    assert read("--enable_gpu", "True", "--mpi-args=-n --wd").mpi_args == "-n --wd"


def test_only_options_of_the_command_are_translated():
    with pytest.raises(
        ConfigError, match=r"unknown option '--wd'; (did you mean .*)?known: --model"
    ):
        parse_arguments(EvaluateOptions, ["--wd", "1"], "evaluate", "")


@pytest.mark.parametrize("word", NO)
def test_no_is_no_gpu(word):
    assert read(f"--enable-gpu={word}").resolved().enable_gpu == ""
    options = parse_arguments(EvaluateOptions, [f"--enable-gpu={word}"], "evaluate", "")
    assert evaluator_settings(options).device == "cpu"


@pytest.mark.parametrize("word", YES)
def test_yes_is_a_gpu(word):
    assert read(f"--enable-gpu={word}").resolved().enable_gpu == "yes"
    options = parse_arguments(EvaluateOptions, [f"--enable-gpu={word}"], "evaluate", "")
    assert wants_gpu(options.enable_gpu)


def test_a_truth_value_is_one_as_well():
    assert Settings(enable_gpu=False).resolved().enable_gpu == ""
    assert read("--enable-gpu").resolved().enable_gpu == "yes"
    assert read("--nesterov").nesterov
    assert Settings(enable_gpu=True).resolved().enable_gpu == "yes"


def test_the_published_evaluation_is_understood():
    words = "--eval-batch-size=10000 --eval_freq=50 --network=ResNet18 --dataset=Cifar10"
    options = parse_arguments(
        EvaluateOptions, [*words.split(), "--model-dir=/home/x/"], "evaluate", ""
    )
    settings = evaluator_settings(options)
    assert (settings.eval_batch_size, settings.eval_freq) == (10_000, 50)
    assert (settings.network, settings.dataset) == ("ResNet18", "Cifar10")


def test_a_gpu_is_neither_had_nor_left_by_a_typing_error():
    with pytest.raises(ConfigError, match="--enable-gpu: 'ney' is neither yes nor no"):
        read("--enable-gpu=ney")


@pytest.mark.parametrize("name", CODECS)
def test_codes_may_be_written_in_any_case(name):
    assert make_codec(name.upper()) == make_codec(name)


def test_inner_codecs_may_be_written_in_any_case():
    assert make_codec("TopK(values=FP16())") == make_codec("topk(values=fp16)")
    assert make_codec("TopK(values=FP16)") == make_codec("topk(values=fp16)")


@pytest.mark.parametrize(
    ("kind", "listed"), [("codec", CODECS), ("network", MODELS), ("comm-type", COMM_TYPES)]
)
def test_published_names_are_taken_or_explained(kind, listed):
    for published, own in NAMES[kind].items():
        assert published == fold(published)
        if own in listed:
            assert resolve(kind, published, listed) == own
        else:
            assert make_codec(own)
            with pytest.raises(ConfigError, match="here it is"):
                resolve(kind, published, listed)


def test_published_names_reach_the_run():
    settings = canonical_settings(
        read("--code=LSS_SGD", "--network=ResNet18_imagenet", "--comm=bcast")
    )
    assert settings.comm_type == "ParameterServer"
    assert settings.code == str(make_codec("lss"))
    assert settings.network == "ResNet18"


if __name__ == "__main__":
    sys.stdout.write(table())
