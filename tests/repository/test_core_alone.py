"""The library alone, without any extra: it encodes, decodes and averages; commands name the extra
that they miss.
"""

import subprocess
import sys
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from support.wheels import TWO_RANKS

from atomo.core.distribution import IMPORTS, NAME, install_command
from atomo.errors import MissingPackage

# None of these can be imported, as if no extra were installed. jinja2 comes with PyTorch. A rank
# imports msgspec before mpi4py, and its sentence would hide the one about mpi4py.
BLOCKED = sorted(
    {*IMPORTS} - {"jinja2", "msgspec"}
    | {"accelerate", "boto3", "jiwer", "lightning", "matplotlib", "pycocotools", "timm"}
    | {"tokenizers", "transformers", "yaml"}
)
BLOCKER = f"""
import sys

class Filter:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):  # such as the search for metadata
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in {BLOCKED!r}
        return None if hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Filter(finder) for finder in sys.meta_path]
"""
# After two ranks of DDP: all public names, and frames of tensors.
CORE = (
    TWO_RANKS.replace("CODE", "fp16")
    + """
for name in atomo.__all__:
    if name not in ("add_parser_arguments",):
        getattr(atomo, name)

gradient = torch.linspace(-1, 1, 4096).view(64, 64)
for code in ("fp16", "topk(ratio=0.1)"):
    frame = atomo.encode(gradient, code, seed=0)
    assert atomo.decode(frame).shape == gradient.shape
memory = atomo.make_memory("residual")
atomo.encode(gradient, "topk(ratio=0.1)", seed=0, memory=memory)
"""
)
COMMAND = "from atomo.cli import main\nsys.exit(main(sys.argv[1:]))"


def run(code: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter that has no extra."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKER + code, *words],
        cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_core_encodes_and_averages_without_any_extra(tmp_path: Path) -> None:
    done = run(CORE, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("train --n 2", "rich"),
        ("rank --n 2 --train-dir run", "mpi4py"),
        ("prepare --dataset MNIST --data-dir data", "torchvision"),
    ],
)
def test_a_command_without_its_extra_is_one_sentence(
    line: str, module: str, tmp_path: Path
) -> None:
    words = line.split()
    done = run(COMMAND, tmp_path, *words)
    assert (done.returncode, done.stdout) == (MissingPackage.exit_code, "")
    extra = IMPORTS[module]
    assert done.stderr == (
        f"atomo {words[0]}: {module} is not installed; it comes with the extra `{extra}`: "
        f"`{install_command(extra)}` brings it\n"
    )


def test_the_command_that_knows_its_version_needs_no_extra(tmp_path: Path) -> None:
    done = run(COMMAND, tmp_path, "--version")
    assert done.returncode == 0, done.stderr


def test_the_metadata_name_the_distribution_and_a_slim_core() -> None:
    assert metadata("atomo-torch")["Name"] == NAME
    core = {line.split(">")[0] for line in requires(NAME) or () if "extra ==" not in line}
    assert core == {
        "torch", "numba", "numpy", "blosc", "xxhash", "safetensors", "typing-extensions",
        "jaxtyping",
    }  # fmt: skip
