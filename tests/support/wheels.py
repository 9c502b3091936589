"""The distribution as it is published: built, installed alone, and used without the checkout."""

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import final

from atomo_cluster.ec2.hosts.checkout import checkout_files

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "src"  # the folder of the cluster tools' distribution
TWO_RANKS = """
import os
import torch
from torch.nn.parallel import DistributedDataParallel
import atomo

def rank(number):
    store = f"file://{os.getcwd()}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=number, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    state, hook = atomo.ddp_hook(model, "CODE")
    model.register_comm_hook(state, hook)
    model(torch.full((1, 64), 1.0 + number)).sum().backward()
    torch.testing.assert_close(model.module.weight.grad, torch.full((64, 64), 1.5))
    torch.distributed.destroy_process_group()

children = []
for number in range(2):
    if not (child := os.fork()):
        rank(number)
        os._exit(0)
    children.append(child)
assert not any(os.waitpid(child, 0)[1] for child in children)
"""
"""A script with two ranks of DDP, forked before anything starts threads; CODE is their codec."""
LONGEST_S = 600  # only a hang takes as long, on any loaded machine


def call(*words: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Returns the output of a command, which must succeed."""
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sources() -> set[str]:
    """Returns the files of the checkout that git has, or would take."""
    return {name for name in checkout_files(ROOT) if (ROOT / name).is_file()}


def build(root: Path, folder: Path, *targets: str) -> None:
    """Builds distributions of a source tree: `sdist`, `wheel`, or both."""
    chosen = [word for target in targets for word in ("-t", target)]
    call(sys.executable, "-m", "hatchling", "build", "-d", str(folder), *chosen, cwd=root)


@final
class Installed:
    """An environment that has a wheel, the packages of the tests, and no checkout.

    Args:
        folder: an empty folder.
        root: the folder of the distribution.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.cwd, self._env = folder / "cwd", folder / "env"
        self.cwd.mkdir()
        build(root, folder, "sdist", "wheel")
        [self.wheel], [self.sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
        venv.create(self._env, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", self.bin / "python", "install"]
        call(*pip, "--no-deps", "--no-index", "--no-compile", "-q", self.wheel, cwd=folder)
        # Lines of files .pth in there, as that of an editable Atomo, are not read through this one.
        paths = [path for path in sys.path if path.endswith("site-packages")]
        self.site_packages.joinpath("dependencies.pth").write_text("\n".join(paths) + "\n")

    @property
    def bin(self) -> Path:
        """The folder of the environment's commands."""
        return self._env / "bin"

    @property
    def site_packages(self) -> Path:
        """The folder of the environment's packages."""
        return next(self._env.glob("lib/python*/site-packages"))

    def run(self, command: str, *words: str | Path) -> str:
        """Runs a command of the environment in an empty folder, and returns its output."""
        env = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
        mpirun = Path(sys.executable).parent
        env["PATH"] = f"{self.bin}:{env['PATH']}:{mpirun}"
        return call(self.bin / command, *words, cwd=self.cwd, env=env | {"OMP_NUM_THREADS": "1"})


def check_metadata(built: Installed) -> None:
    """Checks that a package index would take both files, and show their description."""
    twine = [sys.executable, "-m", "twine", "check", "--strict"]
    assert call(*twine, built.wheel, built.sdist, cwd=built.cwd).count("PASSED") == 2
