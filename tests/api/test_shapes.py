"""Scalars, single entries and nothing at all, to every codec; and frames that lie about them."""

from itertools import product

import pytest
import torch
from support.draws import normal, seeded
from torch import Size

import atomo
from atomo.api.description import Description, write_description
from atomo.codecs import CODECS, make_codec
from atomo.errors import CodecError, FrameError
from atomo.wire import Compression, Header, Kind, pack

SPECS = [*CODECS, "rows(values=fp16)", "topk(values=qsgd)", "svd(factors=fp16)",
         "svd(matricisation=auto)", "onebit(scope=layer)", "qsgd(bucket_size=0)"]  # fmt: skip
ONE_ENTRY = [(), (1,), (1, 1), (1, 1, 1)]
SHAPES = [(), (1,), (1, 1), (5,), (3, 2), (2, 2, 2)]
every_codec = pytest.mark.parametrize("code", SPECS)


@every_codec
@pytest.mark.parametrize("shape", ONE_ENTRY)
def test_one_entry_of_any_shape_is_encoded_alone_and_in_a_list(code, shape):
    entry = normal(*shape)
    for tensors in (entry, [entry, entry]):
        frame = atomo.encode(tensors, code, seed=0, dense_below=0)
        for answer in (atomo.decode(frame), atomo.average([frame, frame])):
            parts = answer if isinstance(answer, list) else [answer]
            assert [part.shape for part in parts] == [entry.shape] * len(parts)
            assert all(part.isfinite().all() for part in parts)


def test_rows_of_a_scalar_are_the_scalar():
    assert atomo.decode(atomo.encode(torch.tensor(3.0), "rows", seed=0)).equal(torch.tensor(3.0))
    assert atomo.decode(atomo.encode(torch.tensor(0.0), "rows", seed=0)).equal(torch.tensor(0.0))


@every_codec
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_at_all_is_refused_by_name(code, shape):
    with pytest.raises(CodecError, match=r"empty"):
        make_codec(code).encode(torch.empty(shape), seeded(0))


@pytest.mark.slow
@every_codec
def test_sections_of_another_shape_decode_to_the_declared_one_or_are_refused(code):
    codec = make_codec(code)
    for encoded, declared, below in product(SHAPES, SHAPES, (0, None)):
        payload = codec.encode(normal(*encoded), seeded(0))
        about = Description(codec, True, ((torch.float32, Size(declared)),), below)
        frame = pack(
            Header(Kind.TENSORS), codec.sections(payload), Compression(), write_description(about)
        )
        try:
            assert atomo.decode(frame.tobytes()).shape == declared
        except FrameError:
            assert encoded != declared or below != 0
