"""Every way offers what its idea promises, and a tensor's device chooses among them."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

import atomo.kernels
from atomo.kernels.ways import ways_of

ROOM = Path(atomo.kernels.__file__).parent
BLOCKS = {"random"}  # what ways are made of: nobody calls it by device
WAYS = sorted(
    (path.parent.name, path.stem)
    for path in ROOM.glob("*/*_way.py")
    if path.parent.name not in BLOCKS and (path.parent / "torch_way.py").exists()
)


@pytest.mark.parametrize(("idea", "way"), WAYS)
def test_a_way_has_the_functions_of_its_idea(idea, way):
    promised, offered = (import_module(f"atomo.kernels.{name}") for name in (idea, f"{idea}.{way}"))
    reference = import_module(f"atomo.kernels.{idea}.torch_way")
    assert set(reference.__all__) <= set(offered.__all__)
    for name in reference.__all__:
        parameters = inspect.signature(getattr(promised, name)).parameters.values()
        given = inspect.signature(getattr(offered, name)).parameters.values()
        assert [(p.name, p.default) for p in given] == [(p.name, p.default) for p in parameters]


def test_the_device_of_a_tensor_chooses_its_way():
    backend = ways_of("atomo.kernels.sign", "numba", "torch")
    assert backend(torch.empty(1)).__name__ == "atomo.kernels.sign.numba_way"
    assert backend(torch.empty(1, device="meta")).__name__ == "atomo.kernels.sign.torch_way"


def test_an_idea_without_a_way_for_a_device_says_so():
    with pytest.raises(LookupError, match=r"no way for tensors on meta.*numba"):
        ways_of("atomo.kernels.sign", "numba")(torch.empty(1, device="meta"))


def test_the_page_on_gpus_names_the_way_of_every_kernel():
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    rows = [row.split("|")[1:4] for row in page.splitlines() if row.startswith("| `")]
    said = {idea: where for ideas, _, where in rows for idea in re.findall(r"`(\w+)`", ideas)}
    ways = {path.name: {way.stem for way in path.glob("*_way.py")} for path in ROOM.glob("*/")}
    first = {"triton_way": "Triton", "torch_way": "PyTorch", "numba_way": "the host"}
    for idea, found in ways.items():
        expected = next((said for way, said in first.items() if way in found), None)
        assert expected is None or said[idea].strip().startswith(expected), idea
