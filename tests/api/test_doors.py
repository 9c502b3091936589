"""Errors for wrong arguments of public functions, in the caller's words."""

import pytest
import torch

import atomo
from atomo.codecs import CODECS, Dense
from atomo.codecs.spec import IN_ROUNDS, read
from atomo.errors import ConfigError
from atomo.hooks.code_spec import parse_code, reductions_by_code
from atomo.hooks.states.ddp_buckets import check_buckets
from atomo.memory import MEMORIES, Residual, check_number, default_memory
from atomo.memory import read_memory as memory_of
from atomo.options.compression import Compression


@pytest.mark.parametrize("code", CODECS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_memory_of_a_specification_is_that_of_its_codec(code, momentum):
    assert default_memory(code, momentum) == default_memory(CODECS[code](), momentum)
    assert atomo.default_memory(f"  {code}  ") in MEMORIES


def test_every_method_of_several_rounds_is_known_to_be_no_codec():
    assert IN_ROUNDS.keys() == reductions_by_code().keys()
    for name in reductions_by_code():
        with pytest.raises(ConfigError, match=f"{name} is no codec"):
            atomo.encode(torch.ones(3, 3), name, seed=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: default_memory("topkk"), "unknown codec 'topkk'; did you mean 'topk'"),
        (lambda: check_number("momentum", "0.9"), "momentum must be a number, got '0.9' of type"),
        (lambda: check_number("momentum", True), "momentum must be a number, got True"),
        (lambda: memory_of(Residual()), r"such as 'residual\(beta=0.9\)', got <atomo.memory.res"),
        (
            lambda: memory_of(None),
            r"a memory is named here, such as 'residual\(beta=0.9\)', got None",
        ),
        (lambda: read(Dense()), r"a specification is text such as .*, got Dense\(\) of type Dense"),
        (lambda: parse_code("powersg("), "unknown codec 'powersg'; did you mean 'powersgd'"),
        (lambda: parse_code("powersgd(rank=0)"), "^powersgd: rank must be a whole number of 1 or"),
        (lambda: parse_code("acpsgd(rank=True)"), "^acpsgd: rank must be a whole number of 1 or"),
        (lambda: parse_code("chunked(ratio=2)"), "^chunked: ratio must be above 0 and at most 1"),
        (lambda: parse_code("chunked(rank=2)"), "^chunked: unknown setting 'rank'"),
        (lambda: Compression(level=True), "blosc level must be a whole number, got True"),
        (lambda: check_buckets("layer", "layer"), "must be a torch.nn.Module, got 'layer' of type"),
        (lambda: check_buckets(torch.nn.Linear(1, 1), 4), "text such as 'bytes:4', got 4 of type"),
        (lambda: atomo.bucket_cap_mb_list(torch.nn.Linear(2, 2), "cuts:1,9"), "^fusion cuts:1,9: "),
    ],
)
def test_what_is_given_wrongly_is_named(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_what_a_codec_and_a_memory_are_refused_for_serves_a_command_and_a_program():
    for code, memory in (("svd", "residual"), ("terngrad(scale=shared)", "residual")):
        with pytest.raises(ConfigError) as refused:
            atomo.Encoder(code, memory=memory)
        assert "--" not in str(refused.value)
        assert f"code {code} " in str(refused.value)
