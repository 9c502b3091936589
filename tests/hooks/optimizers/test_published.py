"""The functions of MergeComp and DRAGONN, with the options of both."""

from argparse import ArgumentParser

import pytest
from hooks.loops import model, steps
from torch import nn
from torch.optim import SGD

import atomo
from atomo.errors import ConfigError

# As their READMEs and scripts give them, without the options of the scripts.
COMMANDS = [
    "--compress --compressor efsignsgd --comm allgather --memory residual --fusion-num 1",
    "--compress --compressor fp16 --comm allreduce --memory none --fusion-num 2 --scheduler "
    "--scheduler-baseline --speed-test",
    "--compress --compressor efsignsgd --fusion-num 0",
    "--fp16-allreduce --adam",
    "--pcie --compress --compressor dgc --memory none --comm allgather --compress-ratio 0.01",
    "--pcie --compress --compressor atopk --memory none --comm allgather --compress-ratio 1e-3 "
    "--batching --threshold 204800 --compress-iter 2",
    "--compress --compressor Top-k --scheduler-epoch 20 --scheduler-step 2 --scheduler-warmup 5",
]


def plain_sgd(network: nn.Module) -> SGD:
    return SGD(network.parameters(), lr=0.1)


def options() -> ArgumentParser:
    return atomo.add_parser_arguments(ArgumentParser())


@pytest.mark.slow
def test_the_published_pair():
    parser = atomo.add_parser_arguments(ArgumentParser())
    words = "--compress --compressor topk --memory residual --compress-ratio 0.25 --fusion-num 3"
    network = model()
    given = parser.parse_args([*words.split(), "--comm", "allgather"])
    optimizer = atomo.wrap_compress_optimizer(network, plain_sgd(network), given)
    assert optimizer.exchange.state_dict()["memory"] == "residual"
    steps(1)(0, network, optimizer)
    assert optimizer.exchange.stats.ratio > 1
    other = model()
    plain = atomo.wrap_compress_optimizer(other, plain_sgd(other), parser.parse_args([]))
    steps(1)(0, other, plain)
    assert plain.exchange.stats.ratio == 1
    for words, told in (
        ("--comm ps", "--comm ps: one of"),
        ("--fusion-num -1", "0 or more"),
        ("--use-adasum", "gradients are averaged"),
    ):
        with pytest.raises(ConfigError, match=told):
            atomo.wrap_compress_optimizer(
                network, plain_sgd(network), parser.parse_args(words.split())
            )


@pytest.mark.parametrize("command", COMMANDS)
def test_published_commands_train(command, monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "0")
    network = model()
    given = options().parse_args(command.split())
    optimizer = atomo.wrap_compress_optimizer(network, plain_sgd(network), given)
    steps(1, 3)(0, network, optimizer)
    assert optimizer.exchange.stats.steps == 3


def test_small_tensors_and_first_steps_are_dense_where_asked():
    def ratio(words: str) -> float:
        network = model()
        given = options().parse_args(["--compress", "--compress-ratio", "0.1", *words.split()])
        optimizer = atomo.wrap_compress_optimizer(network, plain_sgd(network), given)
        steps(1, 2)(0, network, optimizer)
        return optimizer.exchange.stats.ratio

    assert ratio("") > 2
    assert ratio("--threshold 1000000") == pytest.approx(1, abs=0.1)
    assert ratio("--compress-iter 2") == pytest.approx(1, abs=0.1)


def test_no_buckets_is_one_for_each_layer():
    network = model()
    given = options().parse_args(["--fusion-num", "0"])
    optimizer = atomo.wrap_compress_optimizer(network, plain_sgd(network), given)
    assert len(optimizer._buckets) == len(list(network.parameters()))


def test_options_of_the_script_stay_its_own():
    parser = ArgumentParser()
    parser.add_argument("--threshold", default="before")
    atomo.add_parser_arguments(parser)
    assert parser.parse_args([]).threshold == "before"
