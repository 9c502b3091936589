"""The contract suite on a GPU has codecs encode and add up there: seen with copies on a CPU."""

import gpu.test_cuda_contract as test_cuda_contract
import pytest
from torch import Tensor

from atomo.codecs import make_codec


@pytest.mark.parametrize(
    "name",
    ["test_adds_with_a_scale", test_cuda_contract.test_several_gradients_at_once_are_sent_as_each],
    ids=["of the suite", "in place of one"],
)
def test_gradients_and_sums_go_there_and_come_back(monkeypatch, name):
    codec, gone = make_codec("topk(ratio=0.5)"), list[int]()

    def put(one: Tensor) -> Tensor:
        gone.append(one.numel())
        return one.clone()

    test_cuda_contract.lift(monkeypatch, type(codec), put)
    test = test_cuda_contract.TESTS[name] if isinstance(name, str) else name
    test(codec)
    assert len(gone) > 2
