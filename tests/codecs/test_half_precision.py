"""Gradients in half precision: each codec and memory gives the result of a float32 copy."""

import pytest
import torch
from support.draws import normal, seeded
from support.selection import slow_but
from torch import Tensor

from atomo.codecs import CODECS, make_codec
from atomo.exchange import Compressor
from atomo.fusion import plan
from atomo.memory import MEMORIES, make_memory
from atomo.options.grouping import megabytes
from atomo.wire.compression import Compression

SPECS = [*CODECS, "qsgd(bits=2, bucket_size=100, norm=max)", "topk(ratio=0.1, values=fp16)"]
READING = [spec for spec in SPECS if make_codec(spec).accepts_half]
HALVES = (torch.bfloat16, torch.float16)
KEPT = [f"{spec} with {name}" for spec in ("topk(ratio=0.1)", "sgd") for name in MEMORIES]
PAIRS = [
    *KEPT,
    *(f"{spec} with {name}" for spec in ("dgc", "svd") for name in MEMORIES),
    *(f"{spec} with none" for spec in SPECS),
    "efsignsgd with residual(gamma=0.5)",
    "topk with dgc(clip=0.1)",
]
PARAMETERS = [("a", torch.Size((20, 30))), ("b", torch.Size((30,)))]


@pytest.mark.parametrize("spec", READING)
def test_what_reads_half_precision_makes_of_it_what_it_makes_of_a_copy(spec):
    codec, gradient = make_codec(spec), normal(30, 40).bfloat16()
    residual, wide_kept = normal(30, 40, seed=2), normal(30, 40, seed=2)
    pairs = [
        (codec.encode(gradient, seeded()), codec.encode(gradient.float(), seeded())),
        (
            codec.encode_residual(gradient, residual, seeded()),
            codec.encode_residual(gradient.float(), wide_kept, seeded()),
        ),
    ]
    for actual, expected in pairs:
        assert_same(codec.sections(actual), codec.sections(expected))
    assert residual.equal(wide_kept)
    assert gradient.equal(normal(30, 40).bfloat16())


def assert_same(result: list[Tensor], expected: list[Tensor]) -> None:
    for actual, second in zip(result, expected, strict=True):
        torch.testing.assert_close(actual, second, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", slow_but(HALVES[:1], HALVES), ids=str)
@pytest.mark.parametrize("pair", slow_but(KEPT, PAIRS), ids=str)
def test_a_worker_sends_of_half_precision_what_it_sends_of_a_copy(pair, dtype):
    """Runs three steps, so that the residual is compared as well."""
    spec, memory = pair.split(" with ")
    (bucket,) = plan(PARAMETERS, make_codec(spec), megabytes(0.01))
    result = []
    for widen in (False, True):
        compressor = Compressor(make_memory(memory, nesterov=True), Compression(), worker=1, seed=5)
        frames = []
        for step in (1, 2, 3):
            gradient = normal(bucket.size, seed=step).to(dtype)
            compressor.memory.begin(float(gradient.float().norm()))
            frames.append(
                compressor.compress(bucket, gradient.float() if widen else gradient, step)
            )
        result.append((frames, compressor.memory.state_dict()))
    assert [f.tobytes() for f in result[0][0]] == [f.tobytes() for f in result[1][0]]
    torch.testing.assert_close(result[0][1], result[1][1], rtol=0, atol=0)
