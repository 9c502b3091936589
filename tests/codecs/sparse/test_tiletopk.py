"""Top-k within tiles, and the two-level values that it is made for."""

import math

import pytest
import torch
from support.draws import normal, seeded
from torch import Size, Tensor

import atomo
from atomo.codecs import make_codec
from atomo.codecs.sparse.tiletopk import TileTopK
from atomo.errors import CodecError, ConfigError
from atomo.kernels.sign import word_count


def log2_choose(n: int, k: int) -> float:
    """Returns the bits that identify one set of k out of n entries."""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def sent(code: str, gradient: Tensor) -> Tensor:
    codec = make_codec(code)
    return codec.decode(codec.encode(gradient, seeded()), gradient.shape)


@pytest.mark.parametrize("shape", [(128, 192), (64, 8, 4, 2), (8192,), (2, 64, 64)])
def test_each_tile_sends_its_share_however_loud_the_others_are(shape):
    """Checks layers of which a quarter is a million times louder."""
    gradient = normal(*shape)
    gradient.view(-1)[: gradient.numel() // 4] *= 1e6
    chosen = sent("tiletopk", gradient) != 0
    if len(shape) > 1:
        matrix = chosen.view(shape[0], -1)
        tiles = [tile for band in matrix.split(64) for tile in band.split(64, 1)]
    else:
        tiles = [*chosen.split(4096)]
    assert [int(tile.sum()) for tile in tiles] == [
        max(1, round(0.0156 * tile.numel())) for tile in tiles
    ]


def test_a_tile_sends_its_largest_entries_and_of_equal_ones_the_first():
    gradient = torch.ones(4, 4)
    gradient[3, 3] = -2
    assert sent("tiletopk(ratio=0.5, tile=2)", gradient).tolist() == [
        [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, -2],
    ]  # fmt: skip


def test_one_tile_is_topk_of_the_layer():
    gradient = normal(60, 50)
    assert sent("tiletopk(ratio=0.05)", gradient).equal(sent("topk(ratio=0.05)", gradient))


def test_places_take_nearly_the_bits_of_the_bound():
    codec, gradient = TileTopK(), normal(512, 512)
    payload = codec.encode(gradient, seeded())
    count = int(payload.count)
    assert count == 64 * 64
    bound = 64 * log2_choose(4096, 64)
    assert 8 * len(payload.indices) <= 1.03 * bound
    assert bound / count == pytest.approx(7.36, abs=0.01)


def test_two_bit_values_add_two_bits_to_an_entry_that_is_sent():
    plain, coded = (make_codec(f"tiletopk(values={code})") for code in ("sgd", "lloydmax"))
    gradient = normal(512, 512)
    sizes = [
        sum(8 * part.nbytes for part in codec.sections(codec.encode(gradient, seeded())))
        for codec in (plain, coded)
    ]
    assert sizes[0] - sizes[1] == 4096 * 30 - 64


@pytest.mark.parametrize("values", ["sgd", "fp16", "lloydmax", "lloydmax(bucket_size=64)"])
def test_frames_of_several_workers_average(values):
    code = f"tiletopk(ratio=0.1, tile=8, values={values})"
    gradients = [[normal(20, 30, seed=seed)] for seed in range(3)]
    frames = [atomo.encode(gradient, code, seed=1) for gradient in gradients]
    (mean,) = atomo.average(frames)
    expected = torch.stack([atomo.decode(frame)[0] for frame in frames]).mean(0)
    torch.testing.assert_close(mean, expected)


def test_more_entries_than_the_tiles_of_a_layer_may_send_are_refused():
    codec = TileTopK()
    payload = codec.encode(normal(128, 64), seeded())
    total = torch.ones(64, 64)
    with pytest.raises(CodecError, match="tiletopk: 128 indices; at most 64 of 4096"):
        codec.add_decoded(payload, total)
    assert total.equal(torch.ones(64, 64))


def test_two_levels_lose_little_of_what_a_sparsifier_sends():
    gradient = normal(512, 512)
    plain = sent("tiletopk", gradient)
    coded = sent("tiletopk(values=lloydmax)", gradient)
    assert float((plain - coded).square().sum()) < 0.006 * float(plain.square().sum())
    assert len(coded[coded != 0].abs().unique()) == 2


def test_levels_of_another_shape_are_refused():
    codec = make_codec("lloydmax(bucket_size=10)")
    payload = codec.encode(normal(100), seeded())
    wrong = type(payload)(payload.signs, payload.outer, payload.levels[:9])
    with pytest.raises(CodecError, match=r"lloydmax: levels of shape \(9, 2\), not \(10, 2\)"):
        codec.decode(wrong, Size([100]))
    short = type(payload)(payload.signs, payload.outer[:-1], payload.levels)
    with pytest.raises(CodecError, match=f"{word_count(100) - 1} words"):
        codec.decode(short, Size([100]))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("code", ["tiletopk", "tiletopk(values=lloydmax)", "lloydmax"])
def test_what_is_not_finite_is_refused(code, value):
    gradient = normal(10, 10)
    gradient[5, 5] = value
    with pytest.raises(CodecError, match="NaN or infinity"):
        make_codec(code).encode(gradient, seeded())


def test_a_negative_bucket_is_refused():
    with pytest.raises(ConfigError, match="lloydmax: bucket_size must be 0 or more, got -1"):
        make_codec("lloydmax(bucket_size=-1)")
