"""Smoothed labels, clipped gradients, decay of some parameters and autocast are PyTorch's own."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.harness import largest_difference, run_threads, settings
from support.selection import slow_but
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from atomo.codecs import make_codec
from atomo.config.settings import Settings
from atomo.core.arguments import parse_arguments
from atomo.core.randomness import derive
from atomo.errors import ConfigError
from atomo.fusion import Gradients, plan, shapes
from atomo.options.grouping import ONE
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.shard import Shard
from atomo.training.optim.precision import LossScale
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

STEPS = 5
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def plain(
    chosen: Settings,
    loss: Loss = lambda model, images, labels: cross_entropy(model(images), labels),
    clip: float = 0.0,
    apart: bool = False,
    scale: float = 1.0,
) -> dict[str, Tensor]:
    """Trains in one process on the joined batches, with PyTorch's functions; returns
    the weights.
    """
    data = load_dataset(chosen.dataset, Path(chosen.data_dir))
    torch.manual_seed(derive(chosen.seed, "weights"))
    model = build_model(chosen.network, data.input_shape, data.classes)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[chosen.optimizer]
    momentum_options = {"momentum": chosen.momentum} if chosen.optimizer == "sgd" else {}
    vectors = [p for p in model.parameters() if p.dim() == 1]
    matrices = [p for p in model.parameters() if p.dim() > 1]
    groups = [{"params": matrices}, {"params": vectors} | ({"weight_decay": 0.0} if apart else {})]
    optimizer = kind(groups, lr=chosen.lr, weight_decay=chosen.weight_decay, **momentum_options)
    shards = [Shard(len(data.train), 2, w, chosen.batch_size, chosen.seed) for w in range(2)]
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        for shard in shards:
            images, labels = data.train.batch(shard.indices(step))
            (loss(model, images, labels) * scale / 2).backward()
        for parameter in model.parameters():
            parameter.grad.div_(scale)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def trained(folder: Path, **changes: object) -> tuple[Settings, dict[str, Tensor]]:
    chosen = settings(folder, code="sgd", max_steps=STEPS, batch_size=16, **changes)
    run_threads(chosen)
    return chosen, dict(load(folder, STEPS).model)


@pytest.mark.slow
def test_smoothed_labels_are_pytorchs(tmp_path):
    chosen, model = trained(tmp_path, network="FC", label_smoothing=0.1)

    def smoothed(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(net(images), labels, label_smoothing=0.1)

    assert largest_difference(plain(chosen, smoothed), model) < 1e-6
    assert largest_difference(plain(chosen), model) > 1e-4


WAYS = [{}, {"down": "updates"}, {"n": 2, "comm_type": "Allgather"}]


@pytest.mark.slow
@pytest.mark.parametrize("way", slow_but(WAYS[:1], WAYS), ids=str)
def test_a_clipped_gradient_is_pytorchs_mean_gradient_clipped(way, tmp_path):
    chosen, model = trained(tmp_path, network="LeNet", clip_grad=0.4, fusion_mb=0.1, **way)
    assert largest_difference(plain(chosen, clip=0.4), model) < 1e-6
    assert largest_difference(plain(chosen), model) > 1e-4


OPTIMIZERS = [{"optimizer": "sgd"}, {"optimizer": "adam", "lr": 1e-3}]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", slow_but(OPTIMIZERS[:1], OPTIMIZERS))
def test_decay_of_weights_alone_is_that_of_two_groups(optimizer, tmp_path):
    decay = {"weight_decay": 0.1, "decay_norms": False, "network": "LeNet", **optimizer}
    chosen, model = trained(tmp_path, fusion_mb=0.1, **decay)
    # Adam's steps are as long for a gradient of rounding errors as for any other.
    near = 1e-6 if chosen.optimizer == "sgd" else 1e-4
    assert largest_difference(plain(chosen, apart=True), model) < near
    assert largest_difference(plain(chosen), model) > 2 * near


@pytest.mark.slow
def test_the_bits_of_before_stay_where_nothing_is_asked_for(tmp_path):
    old, all_decay = tmp_path / "a", tmp_path / "b"
    _, snapshot = trained(old, network="FC", weight_decay=0.1)
    _, two = trained(all_decay, network="FC", weight_decay=0.1, clip_grad=1e9)
    assert all(tensor.equal(two[name]) for name, tensor in snapshot.items())


@pytest.mark.slow
def test_bf16_is_autocast_around_forward_and_loss(tmp_path):
    chosen, model = trained(tmp_path, network="LeNet", precision="bf16")

    def half(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(net(images), labels)

    assert all(tensor.dtype == torch.float32 for tensor in model.values())
    assert largest_difference(plain(chosen, half), model) < 2e-3  # rounding of other sums
    assert largest_difference(plain(chosen), model) > 1e-5


@pytest.mark.long(cases=("4294967296",))
@pytest.mark.slow
@pytest.mark.parametrize("first", [65536.0, 2.0**32])
def test_fp16_is_autocast_with_a_scaled_loss_that_is_tried_again_where_it_overflows(
    first, tmp_path, monkeypatch
):
    """Runs on the CPU, where the command line refuses the option."""
    made: list[LossScale] = []

    def scale() -> LossScale:
        made.append(LossScale(first))
        return made[-1]

    monkeypatch.setattr("atomo.training.step.forward_backward.LossScale", scale)
    common = {"code": "sgd", "max_steps": STEPS, "batch_size": 16, "network": "LeNet"}
    chosen = replace(settings(tmp_path, fusion_mb=0.1, **common), precision="fp16")
    run_threads(chosen)
    model = dict(load(tmp_path, STEPS).model)

    def half(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return cross_entropy(net(images), labels)

    assert len(made) == 2
    assert all((scale.value < first) == (first > 65536) for scale in made)
    assert largest_difference(plain(chosen, half, scale=made[0].value), model) < 1e-4
    assert largest_difference(plain(chosen), model) > 1e-4


@pytest.mark.slow
def test_a_batch_that_overflows_counts_once_in_the_statistics_of_batch_norm(tmp_path, monkeypatch):
    """As with GradScaler, whose skipped step has passed its batch once; on the CPU, as above."""
    monkeypatch.setattr(
        "atomo.training.step.forward_backward.LossScale", lambda: LossScale(2.0**32)
    )
    common = {"network": "networks:normed", "code": "sgd", "max_steps": 1, "batches_per_step": 2}
    chosen = replace(settings(tmp_path, batch_size=16, **common), precision="fp16")
    run_threads(chosen)
    saved, data = load(tmp_path, 1).model, load_dataset(chosen.dataset, Path(chosen.data_dir))
    torch.manual_seed(derive(chosen.seed, "weights"))
    drawn = build_model(chosen.network, data.input_shape, data.classes).train()
    replicas = [deepcopy(drawn) for _ in range(2)]
    for worker, replica in enumerate(replicas):
        indices = Shard(len(data.train), 2, worker, 32, chosen.seed).indices(1)
        for part in indices.split(16):
            with torch.autocast("cpu", dtype=torch.float16):
                replica(data.train.batch(part)[0])
    for name, _ in drawn.named_buffers():
        buffers = torch.stack([dict(replica.named_buffers())[name] for replica in replicas])
        assert saved[name].equal(buffers[0] if "tracked" in name else buffers.mean(0)), name


def test_a_scale_goes_up_and_down_as_that_of_gradscaler(monkeypatch):
    monkeypatch.setattr("atomo.training.optim.precision.GROWTH_INTERVAL", 3)
    scale, scaler = LossScale(8.0), torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    layer, reference = (nn.Linear(1, 1, bias=False) for _ in range(2))
    optimizer = torch.optim.SGD(reference.parameters(), lr=1.0)
    gradients = Gradients(layer, plan(shapes(layer), make_codec("sgd"), ONE), scale.hold)
    seen = []
    for entry in (1.0, 2.0, 1e38, 1e38, 3.0, 4.0, 5.0, -2e38, torch.nan, 6.0, 7.0, 8.0, 9.0):
        scale.begin()
        gradients.begin()
        (layer.weight * entry * scale.value).sum().backward()
        optimizer.zero_grad()
        scaler.scale((reference.weight * entry).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if not scale.overflows(gradients):
            ((_, flat),) = scale.release()
            assert flat.equal(reference.weight.grad.flatten())  # which its step has unscaled
        seen.append(scaler.get_scale())
        assert scale.value == seen[-1]
    assert seen == [8, 8, 4, 2, 2, 2, 4, 2, 1, 1, 1, 2, 2]


def test_a_scale_doubles_after_two_thousand_steps():
    scale = LossScale(8.0)
    for _ in range(2000):
        scale.release()
    assert scale.value == 16.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--clip-grad=2 --code=topk", r"give --memory 'dgc\(clip=2\)', which clips"),
        ("--clip-grad=-1", "--clip-grad must be at least 0, got -1"),
        ("--label-smoothing=1.1", "--label-smoothing must be below 1, got 1.1: nothing would"),
        ("--precision=fp16", "--precision fp16 needs --enable-gpu yes: .*; give bf16"),
        ("--precision=int4", "unknown precision 'int4'; known: fp32, bf16, fp16"),
    ],
)
def test_what_cannot_be_is_named(words, message):
    with pytest.raises(ConfigError, match=message):
        parse_arguments(Settings, words.split(), "train", "").resolved()
