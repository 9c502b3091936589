"""Short checks of what the wheel and an extra are for, run by the Python of a fresh environment.

    PYTHON smokes.py EXTRA

The folder of the process is empty. A check ends with an exception if something does not work.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
LONGEST_S: Final = 300
COMMAND: Final = r"`\S*python\S* -m pip install .+` brings (it|one)"
WRAPPED: Final = """
import torch
import atomo

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
sgd = torch.optim.SGD(model.parameters(), 1.0)
optimizer = atomo.wrap_optimizer(sgd, model, "fp16")
from mpi4py import MPI
before, rank = model.weight.detach().clone(), MPI.COMM_WORLD.rank
model(torch.full((1, 8), 1.0 + rank)).sum().backward()
optimizer.step()
torch.testing.assert_close(before - model.weight, torch.full((8, 8), 1.5))
assert MPI.COMM_WORLD.size == 2
"""
TRAINING: Final = "--dataset Digits --network FC --max-steps 5 --timeout 120"


def run(*words: str | Path, code: int = 0) -> str:
    """Returns the output of a command of this environment that ends with an exit code."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [str(word) for word in words],
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONGEST_S, check=False,
    )  # fmt: skip
    assert done.returncode == code, f"{words} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def require_command(message: str) -> None:
    """Fails unless a message has the command that installs what is missing."""
    assert re.search(COMMAND, message), message


def average(rank: int) -> None:
    """Runs a rank of two that average gradients through the hook of DDP."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import atomo

    store = f"file://{Path.cwd()}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    state, hook = atomo.ddp_hook(model, "fp16")
    model.register_comm_hook(state, hook)
    model(torch.full((1, 64), 1.0 + rank)).sum().backward()
    expected = torch.full((64, 64), 1.5)
    torch.testing.assert_close(model.module.weight.grad, expected)
    torch.distributed.destroy_process_group()


def core() -> None:
    """Averages over two processes, and takes every public name."""
    children = []
    for rank in range(2):  # forked before anything starts threads
        if not (child := os.fork()):
            try:
                average(rank)
            except BaseException as error:
                print(error, file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert codes == [0, 0], codes
    import torch

    import atomo

    assert Path(atomo.__file__).is_relative_to(sys.prefix), atomo.__file__
    for name in atomo.__all__:
        try:
            getattr(atomo, name)
        except atomo.MissingPackage as error:
            require_command(str(error))
    gradient = torch.linspace(-1, 1, 64)
    decoded = atomo.decode(atomo.encode(gradient, "topk(ratio=0.1)", seed=0))
    assert isinstance(decoded, torch.Tensor)
    assert decoded.shape == (64,)
    if importlib.util.find_spec("rich") is None:
        printed = run("atomo", "train", "--n", "2", code=atomo.MissingPackage.exit_code)
        require_command(printed)
    assert run("atomo", "--version").startswith(f"atomo {atomo.__version__}, Python ")


def train() -> None:
    """Trains two workers and a master without MPI, and makes the page of the run."""
    torchrun = "torchrun --nproc-per-node 3 -m atomo rank --transport torch --train-dir run"
    printed = run(*f"{torchrun} {TRAINING}".split())
    assert "training ended at step 5: done" in printed, printed
    run("atomo", "report", "run")
    import atomo

    if importlib.util.find_spec("mpi4py") is None:
        words = f"atomo train --n 3 {TRAINING}".split()
        printed = run(*words, code=atomo.MissingPackage.exit_code)
        require_command(printed)


def mpi() -> None:
    """Averages over two MPI ranks."""
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    run(*words, sys.executable, "-c", WRAPPED)


def train_mpi() -> None:
    """Trains a job that `mpirun` starts."""
    printed = run(*f"atomo train --n 3 --evaluator none --train-dir run {TRAINING}".split())
    assert "training ended at step 5: done" in printed, printed


def plot() -> None:
    """Writes a picture."""
    plotting = import_module("atomo.core.plotting")
    figure = plotting.pyplot_for("picture.png").figure()
    figure.savefig("picture.png")


def timm() -> None:
    """Builds a network of timm."""
    foreign = import_module("atomo.workloads.models.foreign")
    foreign.build_foreign("timm:resnet18", (3, 32, 32), 10)


def audio() -> None:
    """Finds the package that counts errors."""
    import_module("atomo.workloads.audio.word_errors").require_jiwer()
    assert import_module("jiwer").wer("a b", "a c") == 0.5


def text() -> None:
    """Makes a tokeniser and an encoder."""
    models: Any = import_module("transformers")
    import_module("atomo.workloads.encoder.folder")
    import_module("tokenizers").Tokenizer(import_module("tokenizers.models").WordLevel())
    config = models.BertConfig(hidden_size=8, num_attention_heads=1, num_hidden_layers=1)
    models.BertModel(config)


def detection() -> None:
    """Draws a mask from an outline."""
    masks = import_module("atomo.workloads.detection.coco").pycocotools("mask")
    assert masks.area(masks.frPyObjects([[0, 0, 4, 0, 4, 4, 0, 4]], 8, 8))[0] == 16


def accelerate() -> None:
    """Trains a step with the hook of Accelerate."""
    import torch

    import atomo

    accelerator = import_module("accelerate").Accelerator(cpu=True)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    atomo.accelerate_hook(accelerator, "fp16", optimizer=optimizer)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(model(torch.ones(1, 4)).sum())
    optimizer.step()


def lightning() -> None:
    """Makes the callback of Lightning."""
    import atomo

    atomo.lightning_callback("fp16")


def ec2() -> None:
    """Plans a cluster, with the answers of AWS from a server on this machine."""
    image, allowed = "ami-785db401", "203.0.113.7/32"
    words = ["plan", "--name", "test", "--image-id", image, "--ssh-from", allowed, "--json"]
    assert '"launch"' in run(sys.executable, ROOT / "tools/pytorch_ec2.py", *words)


def docs() -> None:
    """Loads what the site is built with."""
    for name in ("sphinx", "myst_parser", "furo"):
        import_module(name)


def dev() -> None:
    """Loads what the tests are run with."""
    for name in ("pytest", "hypothesis", "beartype", "moto", "twine", "hatchling"):
        import_module(name)


SMOKES: Final[dict[str, Callable[[], None]]] = {
    "core": core,
    "train": train,
    "mpi": mpi,
    "train,mpi": train_mpi,
    "plot": plot,
    "timm": timm,
    "audio": audio,
    "text": text,
    "detection": detection,
    "accelerate": accelerate,
    "lightning": lightning,
    "ec2": ec2,
    "docs": docs,
    "dev": dev,
}

if __name__ == "__main__":
    SMOKES[sys.argv[1]]()
