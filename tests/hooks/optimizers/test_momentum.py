"""Momentum: refused where a memory would drop it, moved where an optimizer is given."""

import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch
from hooks.loops import batch, flat, model
from hooks.ranks import alone
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import OneCycleLR

import atomo
from atomo.errors import CheckpointError, ConfigError
from atomo.hooks.attachment import HookAttachment
from atomo.hooks.optimizers.momentum_transfer import inner_optimizer, move_momentum, transfers
from atomo.hooks.optimizers.momentum_watch import MomentumWatch, watch_momentum
from atomo.hooks.options.hook_config import HookConfig

HEAVY = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
TO_OPTIMIZER = "give momentum to the optimizer, as in SGD"
TO_MEMORY = "give memory='dgc', which applies momentum"
DROPPING = [
    *((code, "auto", TO_OPTIMIZER) for code in (
        "sgd", "fp16", "bf16", "qsgd", "svd", "natural", "terngrad", "randk", "countsketch",
        "signsgd", "powersgd",
    )),
    *((code, "residual", TO_MEMORY) for code in ("topk", "dgc", "svd(selection=top)", "onebit")),
    ("randk(unbiased=False)", "auto", "give momentum=0, since"),
    ("fp16", "residual", TO_OPTIMIZER),
    ("topk", "none", TO_OPTIMIZER),
    ("signum", "auto", r"give memory='momentum\(beta=0.9\)'"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "memory", "place"), DROPPING)
def test_momentum_that_a_memory_would_drop_is_refused(code, memory, place):
    with pytest.raises(ConfigError, match=rf"momentum=0.9: memory .* applies none of it: {place}"):
        HookConfig(code, memory, 0.9).check()


@pytest.mark.parametrize(
    "code", ["topk", "svd(selection=top)", "efsignsgd", "onebit", "dgc", "acpsgd"]
)
def test_momentum_that_a_memory_applies_is_taken(code):
    HookConfig(code, momentum=0.9, nesterov=True).check()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"nesterov": True}, "nesterov=True needs momentum above 0"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, r"momentum must be in \[0, 1\), got -0.1"),
        ({"memory": "residual", "momentum": 0.9}, TO_MEMORY),
    ],
)
def test_all_doors_refuse(settings, words):
    with pytest.raises(ConfigError, match=words):
        atomo.lightning_callback("topk", **settings)
    with pytest.raises(ConfigError, match=words):
        HookAttachment(HookConfig("topk", **settings), None)  # of Accelerate and of the Trainer
    with alone():
        ddp = DistributedDataParallel(model())
        with pytest.raises(ConfigError, match=words):
            atomo.ddp_hook(ddp, "topk", **settings)


def trained(code: str | None, **settings: Any) -> tuple[torch.Tensor, Any, Any]:
    """Returns the weights after steps with DDP, the optimizer, and the state of the hook."""
    ddp, state = DistributedDataParallel(model()), None
    optimizer = SGD(ddp.parameters(), **HEAVY)
    if code:
        state, hook = atomo.ddp_hook(ddp, code, optimizer=optimizer, **settings)
        ddp.register_comm_hook(state, hook)
    go_on(ddp, optimizer, 0)
    return flat(ddp), optimizer, state


def go_on(ddp: Any, optimizer: Any, first: int) -> None:
    for number in range(first, first + 5):
        images, labels = batch(number)
        optimizer.zero_grad()
        cross_entropy(ddp(images), labels).backward()
        optimizer.step()


def test_what_moved_is_plain_sgd_where_nothing_is_late():
    with alone():
        plain, _, _ = trained(None)
        moved, optimizer, state = trained("sgd", memory="dgc")
    torch.testing.assert_close(moved, plain, rtol=1e-5, atol=1e-6)
    [group] = optimizer.param_groups
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0, False, 0)
    assert repr(state).startswith("Exchange(sgd, memory dgc with momentum 0.9 of Nesterov, 1.0x")
    assert repr(state).endswith("in 5 steps, rank 0 of 1)")


@pytest.mark.parametrize("loads_first", [True, False])
def test_a_resume_goes_on_bit_for_bit(loads_first):
    """The optimizer's state has its momentum, so that it may be loaded before the hook too."""
    with alone():
        ddp = DistributedDataParallel(model())
        optimizer = SGD(ddp.parameters(), **HEAVY)
        state, hook = atomo.ddp_hook(ddp, "topk(ratio=0.1)", optimizer=optimizer)
        ddp.register_comm_hook(state, hook)
        go_on(ddp, optimizer, 0)
        saved = deepcopy([ddp.state_dict(), optimizer.state_dict(), state.state_dict()])
        go_on(ddp, optimizer, 5)

        again = DistributedDataParallel(model())
        again.load_state_dict(saved[0])
        other = SGD(again.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        if loads_first:
            other.load_state_dict(saved[1])
        fresh, hook = atomo.ddp_hook(again, "topk(ratio=0.1)", optimizer=other)
        again.register_comm_hook(fresh, hook)
        if not loads_first:
            other.load_state_dict(saved[1])
        fresh.load_state_dict(saved[2])
        go_on(again, other, 5)
    assert saved[1]["param_groups"][0]["weight_decay"] == 0.01
    assert flat(again).equal(flat(ddp))


def moving(code: str = "topk", memory: str = "auto", **settings: Any) -> tuple[SGD, Any, Any]:
    """Returns an SGD whose momentum a memory has taken over, the config of the hook, and the
    transfer.
    """
    network = model()
    optimizer = SGD(network.parameters(), **HEAVY | settings)
    config, moved = move_momentum(HookConfig(code, memory), [optimizer], network.parameters())
    moved.take()
    return optimizer, config, moved


def test_states_are_those_of_plain_sgd():
    optimizer, config, _ = moving()
    assert (config.momentum, config.nesterov, config.memory_spec) == (0.9, True, "dgc")
    saved = optimizer.state_dict()
    plain = SGD(model().parameters(), **HEAVY)
    assert saved["param_groups"] == plain.state_dict()["param_groups"]
    saved["param_groups"][0]["weight_decay"] = 0.5  # of a run with another one
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["weight_decay"] == 0
    assert transfers[optimizer][0]["weight_decay"] == 0.5
    saved["param_groups"][0] |= {"weight_decay": 0, "momentum": 0, "nesterov": False}
    optimizer.load_state_dict(saved)  # as earlier versions have saved it
    assert transfers[optimizer][0] == {"momentum": 0.9, "nesterov": True, "weight_decay": 0.5}
    saved["param_groups"][0]["momentum"] = 0.5
    with pytest.raises(CheckpointError, match=r"momentum 0.5, and the memory applies momentum 0.9"):
        optimizer.load_state_dict(saved)


def test_an_optimizer_moves_again_with_its_model_wrapped_anew():
    optimizer, config, _ = moving()
    parameters = optimizer.param_groups[0]["params"]
    same, moved = move_momentum(HookConfig("topk"), [optimizer], parameters)
    moved.take()
    assert same == config
    assert optimizer.state_dict()["param_groups"][0]["momentum"] == 0.9
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_a_setting_that_is_set_again_is_an_error_at_the_next_step():
    optimizer, _, _ = moving(nesterov=False)
    OneCycleLR(optimizer, 0.1, total_steps=10)
    with pytest.raises(ConfigError, match=r"a group has 0.95 again: .*cycle_momentum"):
        optimizer.step()
    optimizer, _, _ = moving()
    optimizer.add_param_group({"params": [torch.ones(1)]})
    with pytest.raises(ConfigError, match=r"a group has 0.9 again: add groups before the hook"):
        optimizer.step()


def test_the_memory_of_signum_has_the_momentum_of_the_optimizer():
    optimizer, config, _ = moving("signum", momentum=0.5, nesterov=False)
    assert config.memory_spec == "momentum(beta=0.5)"
    assert optimizer.param_groups[0]["momentum"] == 0
    assert optimizer.param_groups[0]["weight_decay"] == 0.01  # which has none of it
    config.check()
    with pytest.raises(ConfigError, match=r"applies its own momentum, .* 0.9 of Nesterov"):
        moving("signum")
    with pytest.raises(ConfigError, match=r"memory momentum\(beta=0.8\) applies its own"):
        moving("signum", "momentum(beta=0.8)", nesterov=False)


@pytest.mark.parametrize("code", ["sgd", "qsgd", "svd", "fp16", "powersgd", "terngrad"])
def test_momentum_stays_where_the_memory_has_none(code):
    optimizer, config, moved = moving(code)
    assert not moved
    assert config == HookConfig(code)
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_what_cannot_move_is_refused():
    network, other = model(), model()
    optimizer = SGD(network.parameters(), **HEAVY)
    with pytest.raises(ConfigError, match=r"4 of the optimizer's 4 .* 4 of the model's 4 not the"):
        move_momentum(HookConfig("topk"), [optimizer], other.parameters())
    groups = [{"params": [one], "momentum": 0.1 * n} for n, one in enumerate(network.parameters())]
    with pytest.raises(ConfigError, match="or groups that agree"):
        move_momentum(HookConfig("topk"), [SGD(groups, lr=0.1)], network.parameters())
    assert optimizer.param_groups[0]["momentum"] == 0.9
    for given, words in (
        ("sgd", "one of torch.optim, such as SGD, not a str"),
        (atomo.wrap_optimizer(optimizer, network, "sgd"), "averages without a hook"),
    ):
        with pytest.raises(ConfigError, match=words):
            inner_optimizer(given)
    with alone():
        ddp = DistributedDataParallel(network)
        with pytest.raises(ConfigError, match=r"momentum=0.9 and nesterov=False beside"):
            atomo.ddp_hook(ddp, "topk", optimizer=optimizer, momentum=0.9)
        with pytest.raises(ConfigError, match="nesterov=True beside optimizer="):
            atomo.ddp_hook(ddp, "topk", optimizer=optimizer, nesterov=True)


def looked_at(config: HookConfig, optimizer: Any, rank: int = 0) -> list[str]:
    """Returns the warnings of two steps."""
    parameters = optimizer.param_groups[0]["params"]
    watch = MomentumWatch(config, rank, parameters, "the advice")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer.step()
        optimizer.step()
    del watch
    return [str(one.message) for one in seen]


def test_momentum_behind_error_feedback_is_warned_of_once():
    def heavy(momentum: float = 0.9) -> SGD:
        return SGD(model().parameters(), lr=0.1, momentum=momentum)

    [text] = looked_at(HookConfig("topk"), heavy())
    assert "momentum of 0.9 repeats updates that error feedback has delivered already" in text
    assert text.endswith("(topk with memory residual): the advice")
    [text] = looked_at(HookConfig("randk(unbiased=False)"), heavy())
    assert text.endswith("give SGD none")
    [text] = looked_at(HookConfig("topk", momentum=0.9), heavy())
    assert "comes on top of that of memory dgc" in text
    [text] = looked_at(HookConfig("topk", "dgc"), heavy())  # which has none
    assert "repeats updates" in text
    for code in ("sgd", "fp16", "qsgd", "svd"):
        assert not looked_at(HookConfig(code), heavy())
    [text] = looked_at(HookConfig("powersgd"), heavy())
    assert "trains worse with what powersgd sends late: give SGD nesterov=True" in text
    nesterov = SGD(model().parameters(), lr=0.1, momentum=0.9, nesterov=True)
    assert not looked_at(HookConfig("powersgd"), nesterov)
    assert not looked_at(HookConfig("topk"), heavy(0.0))
    assert not looked_at(HookConfig("topk"), heavy(), rank=1)
    assert not looked_at(HookConfig("topk"), Adam(model().parameters()))
    mine = MomentumWatch(HookConfig("topk"), 0, model().parameters(), "")
    assert not looked_at(HookConfig("sgd"), heavy())  # another model's
    del mine


@pytest.mark.parametrize(
    ("code", "nesterov", "warned"),
    [("efsignsgd", False, 1), ("efsignsgd", True, 0), ("acpsgd", False, 1), ("topk", False, 0)],
)
def test_heavy_ball_momentum_that_moved_is_warned_of_where_every_entry_waits(
    code, nesterov, warned
):
    config = HookConfig(code, momentum=0.9, nesterov=nesterov)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for rank in (0, 1):
            assert watch_momentum(config, True, rank, model().parameters(), "") is None
    assert len(seen) == warned


def test_a_plug_takes_the_optimizers_that_a_framework_has():
    with alone():
        for momentum, said in ((0.9, 0), (0.5, 1)):
            ddp = DistributedDataParallel(model())
            first, second = [[*layer.parameters()] for layer in (ddp.module[0], ddp.module[2])]
            both = SGD(first, lr=0.1, momentum=0.9), SGD(second, lr=0.1, momentum=momentum)
            plug = HookAttachment(HookConfig("topk"), None)
            exchange = plug.attach(ddp, None, [*both, SGD(model().parameters(), lr=1.0)])
            kept = "residual" if said else "dgc"  # groups that differ keep their momentum
            assert exchange.state_dict()["memory"] == kept
            assert both[0].param_groups[0]["momentum"] == (0.9 if said else 0)
            cross_entropy(ddp(batch(0)[0]), batch(0)[1]).backward()
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                both[0].step()
            assert [("it does not move into the memory: memory dgc applies" in str(one.message))
                    for one in seen] == [True] * said  # fmt: skip
