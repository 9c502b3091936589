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
    codec, given = make_codec(spec), normal(30, 40).bfloat16()
    kept, wide_kept = normal(30, 40, seed=2), normal(30, 40, seed=2)
    pairs = [
        (codec.encode(given, seeded()), codec.encode(given.float(), seeded())),
        (
            codec.encode_residual(given, kept, seeded()),
            codec.encode_residual(given.float(), wide_kept, seeded()),
        ),
    ]
    for one, other in pairs:
        assert_same(codec.sections(one), codec.sections(other))
    assert kept.equal(wide_kept)
    assert given.equal(normal(30, 40).bfloat16())


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", slow_but(HALVES[:1], HALVES), ids=str)
@pytest.mark.parametrize("pair", slow_but(KEPT, PAIRS), ids=str)
def test_a_worker_sends_of_half_precision_what_it_sends_of_a_copy(pair, dtype):
    """Runs three steps, so that the residual is compared as well."""
    spec, memory = pair.split(" with ")
    (bucket,) = plan(PARAMETERS, make_codec(spec), megabytes(0.01))
    found = []
    for widen in (False, True):
        compressor = Compressor(make_memory(memory, nesterov=True), Compression(), worker=1, seed=5)
        frames = []
        for step in (1, 2, 3):
            given = normal(bucket.size, seed=step).to(dtype)
            compressor.memory.begin(float(given.float().norm()))
            frames.append(compressor.compress(bucket, given.float() if widen else given, step))
        found.append((frames, compressor.memory.state_dict()))
    assert [f.tobytes() for f in found[0][0]] == [f.tobytes() for f in found[1][0]]
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=0)
