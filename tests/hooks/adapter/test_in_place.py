"""Buckets of DDP whose gradients are encoded, and replaced by their mean, where they lie."""

from dataclasses import replace

import pytest
import torch
from support.draws import normal
from support.harness import PATIENCE_S, together
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.exchange.collectives.direct import Direct
from atomo.fusion.buckets import placed
from atomo.hooks.adapter.chunks import Chunk, Codecs, bucket_in_place, bucket_of
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.options.hook_config import HookConfig, make_exchange
from atomo.transports import network

# Vectors lie between matrices, as those of batch norm between convolutions.
PARAMETERS = (
    ("bias", Size([5])),
    ("last", Size([40, 60])),
    ("norm", Size([8])),
    ("first", Size([50, 30])),
    ("end", Size([3])),
)
SIZE = sum(shape.numel() for _, shape in PARAMETERS)
STEPS = 3
PER_LAYER = ("dgc(ratio=0.1)", "svd(rank=2)", "terngrad", "efsignsgd", "powersgd(rank=2)")


def chunk_of(seed: int, unused: str = "") -> Chunk:
    """Returns gradients that lie one after the other."""
    whole, gradients = normal(SIZE, seed=seed), {}
    parts = torch.split(whole, [shape.numel() for _, shape in PARAMETERS])
    for (name, shape), part in zip(PARAMETERS, parts, strict=True):
        gradients[name] = part.view(shape)
    if unused:
        gradients[unused].zero_()
    return Chunk(0, gradients, whole)


def means(code: str, apart: bool) -> tuple[list[Tensor], list[Exchange]]:
    """Returns each rank's means of several steps, from gradients in one tensor or apart."""
    transports = network(2)
    results: list[list[Tensor]] = [[], []]
    exchanges: list[Exchange] = []

    def run(rank: int) -> None:
        collective = Direct(transports[rank], PATIENCE_S)
        exchange = make_exchange(HookConfig(code=code), collective, dict(chunk_of(0).gradients))
        exchanges.append(exchange)
        for step in range(STEPS):
            chunk = chunk_of(2 * step + rank, "first" if (step, rank) == (1, 0) else "")
            exchange.submit(replace(chunk, whole=None) if apart else chunk, 1.0, True, lambda: None)
            exchange.finish()
            results[rank].append(chunk.whole)

    together([lambda rank=rank: run(rank) for rank in range(2)], lambda: None)
    return [torch.cat(of_rank) for of_rank in results], exchanges


@pytest.mark.parametrize("code", [*PER_LAYER, "topk(ratio=0.1)", "signsgd", "acpsgd(rank=2)"])
def test_means_are_those_of_gradients_that_lie_apart(code):
    make_codec("topk")  # imported before there are threads
    (first, second), _ = means(code, apart=False)
    (expected, _), _ = means(code, apart=True)
    assert first.equal(second)
    assert first.equal(expected)


@pytest.mark.parametrize("code", PER_LAYER)
def test_nothing_is_copied_for_a_codec_of_single_layers(code):
    _, exchanges = means(code, apart=False)
    assert not any(exchange._averager._scratch._flats for exchange in exchanges)


def test_parameters_that_a_codec_joins_are_copied_once():
    parameters = tuple(chunk_of(0).parameters)
    assert bucket_in_place(0, parameters, Codecs(make_codec("topk"))) is None
    assert bucket_in_place(0, parameters, Codecs(make_codec("dgc"))) is not None


def test_frames_do_not_depend_on_the_places_of_parameters():
    bucket = bucket_of(0, PARAMETERS, Codecs(make_codec("dgc")))
    moved = placed(bucket, [name for name, _ in PARAMETERS])
    assert [slot.name for slot in bucket.slots] == ["last", "first", "bias", "norm", "end"]
    assert [slot.start for slot in moved.slots] == [5, 2413, 0, 2405, 3913]
    assert [part.adjacent for part in moved.parts] == [True, True, False]
    assert (moved.size, moved.layout_hash) == (bucket.size, bucket.layout_hash)


@pytest.mark.parametrize("change", [{"scale": 2.0}, {"whole": None}])
def test_scaled_gradients_and_gradients_apart_are_copied(change):
    chunk = chunk_of(0)
    bucket = bucket_in_place(0, chunk.parameters, Codecs(make_codec("dgc")))
    assert bucket is not None
    assert chunk.lies_as(bucket)
    assert not replace(chunk, **change).lies_as(bucket)
    assert not Chunk(0, chunk.gradients, chunk.whole.double()).lies_as(bucket)
