"""Everything encodes where the gradient is and decodes to where `out` is, as on the CPU."""

from collections.abc import Iterator

import pytest
import torch
from support.fake_device import Device, placed
from torch import Generator, Tensor

from atomo.codecs import CODECS, Codec, make_codec
from atomo.exchange import Compressor
from atomo.exchange.compressor import add_frame
from atomo.fusion import plan
from atomo.memory import MEMORIES, make_memory
from atomo.options.grouping import megabytes
from atomo.wire.compression import Compression
from atomo.wire.frame import Header, Kind, pack

SPECS = [
    *CODECS,
    "svd(rank=2, matricisation=auto, selection=top)",
    "svd(factors=qsgd(bits=8))",
    "entrywise(mode=qsgd)",
    "qsgd(bits=8, bucket_size=5, coding=packed)",
    "terngrad(clip=0)",
    "topk(ratio=0.3, values=fp16)",
    "topk(ratio=0.3, values=qsgd(bits=4))",
    "randk(ratio=0.4, unbiased=False)",
    "dragonn(threshold=20)",
    "onebit(scope=layer)",
]
SHAPES = [(8, 3, 3, 3), (70, 90)]
# What takes another way when there is much of it, or when its rank is low.
LARGE = [
    ("topk", (400, 400)),
    ("dgc", (400, 400)),
    ("dragonn", (400, 400)),
    ("lss", (400, 700)),
    ("svd(rank=2)", (700, 660)),
    ("svd(rank=2, selection=top)", (300, 280)),
]
CASES = [(make_codec(spec), shape) for spec in SPECS for shape in SHAPES]
CASES += [(make_codec(spec), shape) for spec, shape in LARGE]
every_case = pytest.mark.parametrize(("codec", "shape"), CASES, ids=str)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with Device():
        yield


def normal(shape: tuple[int, ...], seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=seeded(seed))


def seeded(seed: int = 3) -> Generator:
    return Generator().manual_seed(seed)


def sections_on_the_cpu(codec: Codec, payload: object) -> list[Tensor]:
    """Returns the sections that a receiver is given."""
    return [part.cpu() for part in codec.sections(payload)]


@every_case
def test_a_payload_is_the_same_wherever_the_gradient_is(codec, shape):
    there = placed(normal(shape))
    result = sections_on_the_cpu(codec, codec.encode(there, seeded()))
    for actual, expected in zip(
        result, codec.sections(codec.encode(normal(shape), seeded())), strict=True
    ):
        torch.testing.assert_close(actual, expected)
    assert there.held.equal(normal(shape))


@pytest.mark.slow
@every_case
def test_a_payload_decodes_to_where_the_sum_is(codec, shape):
    payload = codec.encode(normal(shape), seeded())
    out, expected = placed(normal(shape, 2)), normal(shape, 2)
    codec.add_decoded(payload, out, 0.5)
    codec.add_decoded(payload, expected, 0.5)
    torch.testing.assert_close(out.held, expected)


@pytest.mark.slow
@every_case
def test_several_payloads_decode_to_where_the_sum_is(codec, shape):
    payloads = [codec.encode(normal(shape, seed), seeded(seed)) for seed in (1, 4)]
    out, expected = placed(normal(shape, 2)), normal(shape, 2)
    codec.add_all(payloads, out, 0.5)
    codec.add_all(payloads, expected, 0.5)
    torch.testing.assert_close(out.held, expected)


@pytest.mark.slow
@every_case
def test_several_gradients_there_are_sent_as_here(codec, shape):
    gradients = [normal(shape, seed) for seed in (1, 4)]
    draws = [[seeded(1), seeded(4)] for _ in range(2)]
    there = codec.encode_all([*map(placed, gradients)], draws[0])
    for actual, expected in zip(there, codec.encode_all(gradients, draws[1]), strict=True):
        pairs = zip(sections_on_the_cpu(codec, actual), codec.sections(expected), strict=True)
        for part, same in pairs:
            torch.testing.assert_close(part, same)


@pytest.mark.slow
@every_case
def test_a_payload_made_there_decodes_on_either_side(codec, shape):
    payload = codec.encode(placed(normal(shape)), seeded())
    here, there = torch.zeros(shape), placed(torch.zeros(shape))
    codec.add_decoded(payload, there)
    codec.add_decoded(codec.assemble(iter(sections_on_the_cpu(codec, payload))), here)
    torch.testing.assert_close(there.held, here)


@pytest.mark.slow
@every_case
def test_what_is_kept_stays_where_it_is(codec, shape):
    residual, expected = placed(normal(shape, 2)), normal(shape, 2)
    codec.encode_residual(placed(normal(shape)), residual, seeded())
    codec.encode_residual(normal(shape), expected, seeded())
    torch.testing.assert_close(residual.held, expected)


@every_case
def test_a_frame_is_the_same_wherever_its_tensors_are(codec, shape):
    payload = codec.encode(normal(shape), seeded())
    here = codec.sections(payload)
    frames = [
        pack(Header(Kind.TENSORS), parts, Compression()) for parts in (here, [*map(placed, here)])
    ]
    assert frames[0].tobytes() == frames[1].tobytes()


@pytest.mark.parametrize("spec", ["fp16", "bf16", "randk", "countsketch"])
def test_what_adds_up_is_the_same_wherever_the_gradient_is(spec):
    codec = make_codec(spec)
    there = codec.encode(placed(normal((70, 90))), seeded())
    here = codec.encode(normal((70, 90)), seeded())
    addend, out, expected = codec.addend(there), placed(torch.zeros(70, 90)), torch.zeros(70, 90)
    torch.testing.assert_close(addend.held, codec.addend(here))
    codec.add_summed(there, addend, out)
    codec.add_summed(here, codec.addend(here), expected)
    torch.testing.assert_close(out.held, expected)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["topk", "dgc", "efsignsgd", "svd", "qsgd", "sgd"])
@pytest.mark.parametrize("name", [*MEMORIES])
def test_a_memory_keeps_and_takes_back_where_the_gradient_is(name, spec):
    shape, codec = torch.Size((9, 12)), make_codec(spec)
    states = []
    for put in (placed, lambda tensor: tensor):
        memory = make_memory(name)
        for step in range(3):
            gradient = put(normal(shape, step))
            memory.encode(codec, gradient, {"w": shape}, seeded(step))
            memory.take_back({"w": shape}, put(normal(shape, 9).flatten()))
        states.append({key: value.cpu() for key, value in memory.state_dict().items()})
    torch.testing.assert_close(*states)


@pytest.mark.parametrize("spec", ["topk", "dgc", "qsgd", "svd", "efsignsgd", "lss"])
def test_a_worker_sends_the_same_frames_from_any_device(spec):
    """Two steps with a residual, the second of which is taken back, and the sum of the frames."""
    parameters = [("a", torch.Size((20, 30))), ("b", torch.Size((30,)))]
    (bucket,) = plan(parameters, make_codec(spec), megabytes(0.01))
    result = []
    for put in (placed, lambda tensor: tensor):
        compressor = Compressor(make_memory("residual"), Compression(), worker=1, seed=5)
        total = put(torch.zeros(bucket.size))
        for step in (1, 2):
            frame = compressor.compress(bucket, put(normal((bucket.size,), step)), step)
            add_frame(bucket, frame, total, 0.5)
        compressor.take_back()
        residual = {name: part.cpu() for name, part in compressor.memory.state_dict().items()}
        result.append((torch.from_numpy(frame.copy()), total.cpu(), residual))
    torch.testing.assert_close(*result)
