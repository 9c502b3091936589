"""Installs the wheel, alone and with each extra, into fresh environments, and checks that it works.

    .venv/bin/python tools/environments/check.py --table docs/stability.md
    .venv/bin/python tools/environments/check.py --pythons python3.12 --extras core train,mpi

Each environment has the wheel, one extra and its packages, and is removed after `pip check` and the
check of the extra in smokes.py. All share the files of packages by hard links, so that each takes
seconds and little room. It needs uv (`pip install uv`) and the packages of the extra `dev`. The
exit code is 1 if a check fails.
"""

import argparse
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from smokes import SMOKES

ROOT: Final = Path(__file__).parents[2]
SMOKE: Final = Path(__file__).parent / "smokes.py"
PYTHONS: Final = ("python3.10", "python3.11", "python3.12", "python3.13")
LONGEST_S: Final = 1200
BEGIN, END = "<!-- environments -->\n", "<!-- end of environments -->\n"
VERSION: Final = "import sys; print(sys.version.split()[0])"
INSTALLED: Final = "from importlib.metadata import distributions; print(len([*distributions()]))"


@final
@dataclass(frozen=True)
class Result:
    """An environment and its outcome."""

    extra: str
    python: str
    packages: int
    megabytes: int
    error: str
    """Empty if all worked."""


def main() -> int:
    """Checks environments, prints a line for each, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pythons", nargs="+", default=[p for p in PYTHONS if runs(p)])
    parser.add_argument("--extras", nargs="+", default=[*SMOKES], choices=[*SMOKES])
    parser.add_argument("--table", type=Path, help="the page that gets the table")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="atomo-") as name, aws() as cloud:
        folder = Path(name)
        wheel = build(folder)
        for python in options.pythons:
            for extra in options.extras:
                began = time.monotonic()
                results.append(result := check(folder / "fresh", wheel, python, extra, cloud))
                print(result, f"{time.monotonic() - began:.0f} s", flush=True)
    if options.table:
        before, _, after = options.table.read_text().partition(BEGIN)
        rest = after.partition(END)[2]
        options.table.write_text(before + BEGIN + table(results) + END + rest)
    return int(any(result.error for result in results))


def runs(python: str) -> bool:
    """Returns True if a Python is installed; a name may be a placeholder of pyenv."""
    return shutil.which(python) is not None and not subprocess.call(
        [python, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def build(folder: Path) -> Path:
    """Builds the wheel, and returns it."""
    words = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.whl"))


@contextmanager
def aws() -> Iterator[dict[str, str]]:
    """Yields the environment variables of a server that answers as AWS would."""
    from moto.server import ThreadedMotoServer

    logging.disable()  # it prints what it does not know of, such as prices
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "fresh",
            "AWS_SECRET_ACCESS_KEY": "fresh",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.stop()


def check(folder: Path, wheel: Path, python: str, extra: str, cloud: dict[str, str]) -> Result:
    """Makes an environment, checks it and removes it."""
    named = f"{wheel}[{extra}]" if extra != "core" else str(wheel)
    fresh = folder / "env/bin/python"
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    env |= cloud
    (folder / "cwd").mkdir(parents=True)
    version = call([python, "-c", VERSION], folder, env).strip()
    packages, error = 0, ""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    try:
        for words in (
            [*uv, "venv", "--python", str(shutil.which(python)), str(folder / "env")],
            [*uv, "pip", "install", "--python", str(fresh), "--link-mode", "hardlink", named],
            [*uv, "pip", "check", "--python", str(fresh)],
            [str(fresh), str(SMOKE), extra],
        ):
            call(words, folder / "cwd", env)
        packages = int(call([str(fresh), "-c", INSTALLED], folder, env))
    except (RuntimeError, subprocess.TimeoutExpired) as failure:
        error = str(failure)
    size = sum(path.lstat().st_size for path in (folder / "env").rglob("*"))
    shutil.rmtree(folder)
    return Result(extra, version, packages, round(size / 1e6), error)


def call(words: Sequence[str], cwd: Path, env: dict[str, str]) -> str:
    """Returns the output of a command.

    Raises:
        RuntimeError: the command fails.
    """
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def table(results: Sequence[Result]) -> str:
    """Returns a row for each extra: packages and size, and the outcome with each Python."""
    versions = list(dict.fromkeys(result.python for result in results))
    cells = {(result.extra, result.python): result for result in results}
    lines = [f"| extra | {' | '.join(f'Python {version}' for version in versions)} |"]
    lines.append("| --- |" + " --- |" * len(versions))
    for extra in dict.fromkeys(result.extra for result in results):
        shown = [cell_text(cells.get((extra, version))) for version in versions]
        lines.append(f"| {f'`{extra}`' if extra != 'core' else 'none'} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def cell_text(result: Result | None) -> str:
    """Returns the packages, the MB and the outcome of an environment."""
    if result is None:
        return ""
    if result.error:
        return "fails"
    return f"{result.packages}, {result.megabytes:,} MB, works"


if __name__ == "__main__":
    sys.exit(main())
