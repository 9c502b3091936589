"""Division into buckets, and gradients that arrive in them during the backward pass."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Size, nn

from atomo.codecs import make_codec
from atomo.errors import ConfigError
from atomo.exchange.compressor import Compressor, add_frame
from atomo.fusion import Bucket, Gradients, flatten, named_slices, plan, shapes
from atomo.memory import NoMemory
from atomo.options.grouping import ONE, megabytes
from atomo.wire import Compression

SIZES = st.lists(st.lists(st.integers(1, 6), min_size=0, max_size=4), min_size=1, max_size=12)


@settings(deadline=None, derandomize=True)
@given(sizes=SIZES, bucket_bytes=st.integers(1, 2000), code=st.sampled_from(["sgd", "svd"]))
def test_every_parameter_lies_in_exactly_one_place(sizes, bucket_bytes, code):
    parameters = [(f"p{number}", Size(shape)) for number, shape in enumerate(sizes)]
    buckets = plan(parameters, make_codec(code), megabytes(bucket_bytes / 1e6))
    slots = [slot for bucket in buckets for slot in bucket.slots]
    assert {(slot.name, slot.shape) for slot in slots} == set(parameters)
    assert len(slots) == len(parameters)
    offset = 0
    for bucket in buckets:
        assert bucket.offset == offset
        ends = [(slot.start, slot.stop) for slot in bucket.slots]
        assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])]
        offset += bucket.size
    assert offset == sum(shape.numel() for _, shape in parameters)


def test_first_buckets_hold_the_last_parameters():
    parameters = [(f"p{number}", Size((10, 10))) for number in range(6)]
    buckets = plan(parameters, make_codec("sgd"), megabytes(0.0008))
    assert [[s.name for s in b.slots] for b in buckets] == [
        ["p5", "p4"],
        ["p3", "p2"],
        ["p1", "p0"],
    ]


def test_what_no_message_takes_is_refused(monkeypatch):
    monkeypatch.setattr("atomo.fusion.buckets.MOST", 20)
    codec, layers = make_codec("topk"), [("one", Size([3, 5])), ("other", Size([2, 5]))]
    assert len(plan(layers, codec, megabytes(1e-6))) == 2
    with pytest.raises(ConfigError, match=r"2 parameters of 25 entries share .* at most 20: give"):
        plan(layers, codec, ONE)
    with pytest.raises(ConfigError, match=r"large \(3, 7\) has 21 entries, .* at most 20: make"):
        plan([("large", Size([3, 7]))], codec, megabytes(1e-6))


def test_one_dimensional_parameters_travel_dense():
    parameters = [("w", Size((4, 4))), ("b", Size((4,))), ("scale", Size(()))]
    (bucket,) = plan(parameters, make_codec("svd"), ONE)
    assert [(part.codec.id, part.shape) for part in bucket.parts] == [
        ("svd", Size((4, 4))),
        ("sgd", Size((5,))),
    ]


@pytest.mark.parametrize("code", ["dgc", "dragonn", "topk(scope=layer)"])
def test_a_ratio_as_published_is_that_of_each_layer(code):
    parameters = [("w", Size((40, 50))), ("v", Size((30, 50))), ("b", Size((4,)))]
    codec = make_codec(code)
    (bucket,) = plan(parameters, codec, ONE)
    assert [part.shape for part in bucket.parts] == [Size((30, 50)), Size((40, 50)), Size((4,))]
    (joined,) = plan(parameters, replace(codec, scope="bucket"), ONE)
    assert [part.shape for part in joined.parts] == [Size((3500,)), Size((4,))]


def test_a_small_layer_beside_one_of_large_entries_gets_its_share():
    """Checks the scope: over the bucket none of its entries would be among the largest."""
    parameters = [("quiet", Size((40, 50))), ("loud", Size((40, 50)))]
    gradient = torch.cat([torch.full((2000,), 1.0), torch.linspace(1e-4, 2e-4, 2000)])
    sent = {}
    for scope in ("layer", "bucket"):
        (bucket,) = plan(parameters, make_codec(f"dgc(ratio=0.01, least=1, scope={scope})"), ONE)
        frame = Compressor(NoMemory(), Compression(), 1, 0).compress(bucket, gradient.clone(), 1)
        out = torch.zeros(4000)
        add_frame(bucket, frame, out, 1.0)
        sent[scope] = [int(part.count_nonzero()) for part in out.split(2000)]
    assert sent["bucket"][1] == 0
    assert 16 <= sent["layer"][1] <= 26


def test_layouts_differ_by_codec_name_and_shape():
    def layout(name: str, shape: tuple[int, ...], code: str) -> int:
        return plan([(name, Size(shape))], make_codec(code), ONE)[0].layout_hash

    one = layout("w", (4, 4), "svd")
    others = [
        layout("v", (4, 4), "svd"),
        layout("w", (2, 8), "svd"),
        layout("w", (4, 4), "svd(rank=2)"),
    ]
    assert one == layout("w", (4, 4), "svd")
    assert one not in others


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Linear(3, 1))


def test_flat_weights_are_the_weights(model):
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    buckets = plan(shapes(model), make_codec("svd"), megabytes(6e-05))
    flat = flatten(model, buckets)
    assert all(view.equal(before[name]) for name, view in named_slices(flat, buckets))
    flat.zero_()
    assert not any(p.any() for p in model.parameters())


def test_buckets_arrive_in_backward_order_with_autograds_gradients(model):
    images = torch.ones(2, 4)
    model(images).sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = None
    arrived: list[int] = []
    found: dict[str, torch.Tensor] = {}

    def ready(bucket: Bucket, flat: torch.Tensor) -> None:
        arrived.append(bucket.number)
        for slot in bucket.slots:
            found[slot.name] = flat[slot.start : slot.stop].view(slot.shape).clone()
        flat.fill_(77.0)  # scratch space: the next pass must not see it

    buckets = plan(shapes(model), make_codec("svd"), megabytes(6e-05))
    gradients = Gradients(model, buckets, ready)
    for _ in range(2):
        arrived.clear()
        gradients.begin()
        model(images).sum().backward()
        gradients.finish()
        assert arrived == list(range(len(buckets)))
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient)


def test_parameters_that_the_loss_does_not_depend_on_arrive_as_zeros(model):
    arrived: dict[int, torch.Tensor] = {}
    buckets = plan(shapes(model), make_codec("svd"), megabytes(6e-05))
    gradients = Gradients(
        model, buckets, lambda bucket, flat: arrived.update({bucket.number: flat})
    )
    gradients.begin()
    model[0](torch.ones(2, 4)).sum().backward()
    gradients.finish()
    assert len(arrived) == len(buckets)
    assert not arrived[0].any()
    assert arrived[len(buckets) - 1].any()
