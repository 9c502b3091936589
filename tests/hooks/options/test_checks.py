"""Arguments of hooks and optimizers that cannot be, refused in their own words."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hooks.loops import model
from hooks.ranks import alone
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import atomo
from atomo.errors import ConfigError
from atomo.hooks.options import checks
from atomo.hooks.options.hook_options import DEFAULTS
from atomo.options.compression import Compression

NETWORK = nn.Linear(2, 2)
OPTIMIZER = SGD(NETWORK.parameters(), lr=0.1)


@pytest.mark.parametrize("given", [True, False, None, 1, 0, -2, 2.0, "sometimes", "1"])
def test_hosts_are_a_word_or_a_number(given):
    words = "hierarchical must be 'yes' (hosts by their names), 'no', or how many ranks"
    with pytest.raises(ConfigError, match=re.escape(words)):
        checks.host_rule(given)


@pytest.mark.parametrize(
    ("check", "given", "words"),
    [
        (checks.check_scaler, 1.0, "the torch.amp.GradScaler that scales the loss, or None, got 1"),
        (checks.check_group, "gloo", "must be a torch.distributed.ProcessGroup with this rank"),
        (checks.check_timeout, "5 min", "must be a number of seconds, got '5 min'"),
        (checks.check_timeout, 0, "must be above 0 and finite, got 0"),
        (checks.check_timeout, float("nan"), "must be above 0 and finite, got nan"),
    ],
)
def test_what_is_given_beside_is_what_it_should_be(check: Callable[[Any], None], given, words):
    check(None)
    with pytest.raises(ConfigError, match=re.escape(words)):
        check(given)


def test_what_may_be_given():
    checks.check_scaler(torch.amp.GradScaler("cpu"))
    checks.check_timeout(0.5)
    checks.check_options({**DEFAULTS, "momentum": 0.9, "compression": Compression()})
    checks.check_optimizer(OPTIMIZER, NETWORK, "topk")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("topk", NETWORK), "the model is the first argument and the code the second, such as "
                            "atomo.ddp_hook(ddp, 'topk')"),
        ((NETWORK, "topk"), "a DistributedDataParallel is needed, not a Linear: wrap the model"),
    ],
)  # fmt: skip
def test_a_hook_takes_a_wrapped_model_and_then_a_code(given, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        checks.check_model(*given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((NETWORK, OPTIMIZER, "topk"), "torch.optim.Optimizer is needed, not a Linear: atomo.wrap"),
        ((OPTIMIZER, "topk", NETWORK), "the model is needed, not a str: atomo.wrap_optimizer("),
    ],
)
def test_an_optimizer_comes_before_its_model_and_a_code(given, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        checks.check_optimizer(*given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: checks.check_accelerator("topk", NETWORK), "an accelerate.Accelerator comes first,"
         " not a str: atomo.accelerate_hook(accelerator, 'topk')"),
        (lambda: atomo.accelerate_hook(NETWORK, "dgc"), "first, not a Linear: atomo.accelerate_hook"
         "(accelerator, 'dgc')"),
        (lambda: checks.check_trainer("topk", NETWORK), "a transformers.Trainer comes first, "
         "not a str: atomo.trainer_hook(trainer, 'topk')"),
        (lambda: atomo.trainer_hook(NETWORK, "topk"), "not a Linear: atomo.trainer_hook(trainer, "),
        (lambda: checks.check_callback(NETWORK), "a code comes first, not a Linear: "
         "atomo.lightning_callback('topk(ratio=0.01)')"),
        (lambda: checks.check_sharded("topk", NETWORK), "a model that fully_shard was called on "
         "comes first, not a str: atomo.fsdp_hook(model, 'topk', replicas)"),
        (lambda: checks.check_bucket_mb([1, 2]),
         "bucket_mb must be a number of MB above 0, got [1, 2] of type list"),
        (lambda: checks.check_bucket_mb("4"), "above 0, got '4' of type str"),
        (lambda: atomo.wrap_optimizer(OPTIMIZER, NETWORK, "sgd", bucket_mb=math.inf), "got inf"),
    ],
)  # fmt: skip
def test_arguments_in_another_order_or_of_another_type_are_refused(call, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        call()


def test_an_optimizer_is_wrapped_once():
    averaged = atomo.wrap_optimizer(OPTIMIZER, NETWORK, "sgd")
    with pytest.raises(ConfigError, match="is wrapped already"):
        atomo.wrap_optimizer(averaged, NETWORK, "sgd")


def wrapped(network: nn.Module) -> Any:
    """Returns a wrapped optimizer of all parameters of a model."""
    return atomo.wrap_optimizer(SGD(network.parameters(), lr=0.1), network, "sgd")


def test_gradients_are_averaged_by_one_wrapped_optimizer():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    inner = SGD(network[0].parameters(), lr=0.1)
    first = atomo.wrap_optimizer(inner, network, "sgd")
    with pytest.raises(ConfigError, match="wrap_optimizer averages the gradients of 2 of the 2 "):
        atomo.wrap_optimizer(inner, network, "sgd")
    with pytest.raises(ConfigError, match="wrap_optimizer averages the gradients of 2 of the 4 "):
        wrapped(network)
    second = atomo.wrap_optimizer(SGD(network[1].parameters(), lr=0.1), network, "sgd")
    del first, second
    wrapped(network)  # those that are deleted average nothing


def test_gradients_are_averaged_by_a_hook_or_by_a_wrapped_optimizer():
    with alone():
        ddp, network = DistributedDataParallel(model()), model()
        ddp.register_comm_hook(*atomo.ddp_hook(ddp, "sgd"))
        for given in (ddp, ddp.module):
            with pytest.raises(ConfigError, match="ddp_hook averages the gradients of 4 of the 4 "):
                wrapped(given)
        averaged, other = wrapped(network), DistributedDataParallel(network)
        with pytest.raises(ConfigError, match="wrap_optimizer averages the gradients of 4 of the "):
            atomo.ddp_hook(other, "sgd")
        del averaged
        atomo.ddp_hook(other, "sgd")


def test_an_optimizer_of_a_sharded_model_is_not_wrapped():
    with alone():
        network = model()
        fully_shard(network, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ConfigError, match=r"0.weight is sharded, .* give atomo.fsdp_hook"):
            wrapped(network)
