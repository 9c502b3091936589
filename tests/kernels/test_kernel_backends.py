"""Dispatch of kernels: every backend has the kernel's functions, and the device chooses it."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

import atomo.kernels
from atomo.kernels.backends import backend_for

ROOM = Path(atomo.kernels.__file__).parent
NAMES = {"cuda": "Triton", "reference": "PyTorch", "cpu": "the host"}  # as docs/gpu.md has them
BLOCKS = {"random_words"}  # a part of backends, without dispatch
BACKENDS = sorted(
    (path.parent.name, path.stem)
    for name in NAMES
    for path in ROOM.glob(f"*/{name}.py")
    if path.parent.name not in BLOCKS and (path.parent / "reference.py").exists()
)


@pytest.mark.parametrize(("kernel", "backend"), BACKENDS)
def test_a_backend_has_the_functions_of_its_kernel(kernel, backend):
    contract, offered = (
        import_module(f"atomo.kernels.{name}") for name in (kernel, f"{kernel}.{backend}")
    )
    reference = import_module(f"atomo.kernels.{kernel}.reference")
    assert set(reference.__all__) <= set(offered.__all__)
    for name in reference.__all__:
        parameters = inspect.signature(getattr(contract, name)).parameters.values()
        inputs = inspect.signature(getattr(offered, name)).parameters.values()
        assert [(p.name, p.default) for p in inputs] == [(p.name, p.default) for p in parameters]


def test_the_device_of_a_tensor_chooses_the_backend():
    backend = backend_for("atomo.kernels.sign", "cpu", "reference")
    assert backend(torch.empty(1)).__name__ == "atomo.kernels.sign.cpu"
    assert backend(torch.empty(1, device="meta")).__name__ == "atomo.kernels.sign.reference"


def test_a_kernel_without_a_backend_for_a_device_says_so():
    with pytest.raises(LookupError, match=r"no backend for tensors on meta.*cpu"):
        backend_for("atomo.kernels.sign", "cpu")(torch.empty(1, device="meta"))


def test_the_page_on_gpus_names_the_backend_of_every_kernel():
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    rows = [row.split("|")[1:4] for row in page.splitlines() if row.startswith("| `")]
    shown = {
        kernel: places for names, _, places in rows for kernel in re.findall(r"`(\w+)`", names)
    }
    for folder in ROOM.glob("*/"):
        files = {path.stem for path in folder.glob("*.py")}
        expected = next((text for backend, text in NAMES.items() if backend in files), None)
        assert expected is None or shown[folder.name].strip().startswith(expected), folder.name
