"""Files of tensors, piece by piece: the bytes of the package safetensors, without its copies."""

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from atomo.errors import CodecError, FrameError
from atomo.wire import Compression, Header, Kind, pack, pack_pieces, read_tensor_file, tensor_file
from atomo.wire.tensor_file import NAMES

PLAIN = {
    **{f"{place}": torch.ones(2, place).to(dtype) for place, dtype in enumerate(NAMES)},
    **{f'"é\n{place}': torch.ones(()).to(dtype) for place, dtype in enumerate(reversed(NAMES))},
    "none": torch.empty(0, 3),
}


def written(tensors: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([*tensor_file(tensors).pieces()])


@pytest.mark.parametrize("tensors", [PLAIN, {}], ids=["tensors", "none"])
def test_the_bytes_are_those_of_safetensors(tensors):
    whole = written(tensors)
    assert whole.tobytes() == save(tensors)
    assert tensor_file(tensors).size == len(whole)
    read = read_tensor_file(whole)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert read[name].view(-1).view(torch.uint8).equal(tensor.view(-1).view(torch.uint8))


def test_tensors_may_have_gaps_and_share_storage():
    base = torch.arange(24.0).reshape(2, 3, 4).requires_grad_()
    tensors = {"a": base, "b": base, "t": base.mT, "wide": base[:1].expand(5, 3, 4)}
    read = load(written(tensors).tobytes())
    assert all(read[name].equal(tensor) for name, tensor in tensors.items())


def test_nothing_is_copied_that_lies_in_one_piece():
    tensors = {"a": torch.ones(3, 4), "b": torch.ones(5, dtype=torch.int8)}
    _, first, second = tensor_file(tensors).pieces()
    assert np.shares_memory(first, tensors["a"].numpy())
    assert np.shares_memory(second, tensors["b"].numpy())


def test_what_is_read_is_a_view_where_it_is_aligned_and_may_be_written_to():
    whole = written({"a": torch.ones(3, 4)})
    assert np.shares_memory(read_tensor_file(whole)["a"].numpy(), whole)
    odd = np.empty(1 + len(whole), np.uint8)[1:]
    odd[:] = whole
    for other in (odd, np.frombuffer(whole.tobytes(), np.uint8)):
        read = read_tensor_file(other)["a"]
        assert read.equal(torch.ones(3, 4))
        assert not np.shares_memory(read.numpy(), other)


ONE = '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("", "a file of tensors of 16 bytes with a head of 0"),
        ("{", "is no JSON: "),
        ("[" * 100_000, "is no JSON: "),
        ("[]", "does not name them"),
        (ONE.replace("F32", "F4"), "'a' is {'dtype': 'F4'"),
        (ONE.replace("[2]", "[-2]"), "'shape': \\[-2\\]"),
        (ONE.replace("[2]", "[true,2]"), "'shape': \\[True, 2\\]"),
        (ONE.replace("[2]", "[3]"), "'a' is {"),
        (ONE.replace("[2]", "[0,99999999999999999999]").replace("0,8", "0,0"), "'a' is {"),
        (ONE.replace("[2]", "2"), "'a' is {"),
        (ONE.replace("0,8", "4,12"), "do not follow each other in the 8 bytes"),
        (
            ONE.replace("[2]", "[1]").replace("0,8", "0,4"),
            "do not follow each other in the 8 bytes",
        ),
        (ONE.replace("}}", '},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'), "follow"),
        (ONE.replace("}}", '},"__metadata__":{"a":"b"}}'), "'__metadata__' is {'a'"),
    ],
)
def test_what_a_stranger_says_is_checked(head, told):
    data = len(head).to_bytes(8, "little") + head.encode() + bytes(8)
    with pytest.raises(FrameError, match=told):
        read_tensor_file(np.frombuffer(bytearray(data), np.uint8))


@pytest.mark.parametrize("data", [b"", bytes(7), b"\xff" * 8, b"\x09" + bytes(15)])
def test_a_head_that_is_not_there_is_named(data):
    with pytest.raises(FrameError, match=rf"a file of tensors of {len(data)} bytes with a head"):
        read_tensor_file(np.frombuffer(bytearray(data), np.uint8))


def test_a_dtype_that_no_file_has_is_named():
    with pytest.raises(CodecError, match=r"'w' is of torch.complex128, which no file of tensors"):
        tensor_file({"w": torch.ones(2, dtype=torch.complex128)})


def test_a_frame_of_pieces_is_that_of_the_whole():
    header, whole = Header(Kind.STATE, 7, 2), torch.arange(1000, dtype=torch.int32)
    data = whole.view(torch.uint8)
    pieces = [data[:13].numpy(), data[13:].numpy()]
    expected = pack(header, [data], Compression("none"))
    assert pack_pieces(header, iter(pieces), len(data)).tobytes() == expected.tobytes()
