"""The output of commands on a real terminal."""

import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import Job, until

pytestmark = pytest.mark.slow

WIDTH, HEIGHT = 110, 40


class Terminal:
    """A terminal of its own that runs one shell command."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tmux = ["tmux", "-u", "-L", f"atomo-{uuid.uuid4().hex}", "-f", "/dev/null"]
        self._job: Job | None = None

    def start(self, command: str) -> None:
        size = ["-x", str(WIDTH), "-y", str(HEIGHT)]
        # The last command keeps the screen for us to look at.
        shell = ["sh", "-c", f"trap : INT; {command}; echo exit $?; exec cat"]
        line = [*self._tmux, "new-session", "-d", *size, shlex.join(shell)]
        self._job = Job(line, self._folder / "tmux.log", {"COLUMNS": str(WIDTH)})
        assert self._job.ends() == 0, self._job.output

    def ask(self, *words: str) -> str:
        line = [*self._tmux, *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout

    def shows(self, *texts: str) -> str:
        """Waits until one screen has all of `texts`, and one whole panel; that screen."""
        screen = ""

        def whole() -> bool:
            nonlocal screen  # in the middle of being drawn, it may lack anything
            screen = self.ask("capture-pane", "-p")
            one_panel = screen.count("╭") == screen.count("╰") == 1
            return one_panel and all(text in screen for text in texts)

        try:
            until(whole, f"{texts} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{screen}") from None
        return screen

    def close(self) -> None:
        if self._job is not None:
            self._job.kill()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("a terminal for tests needs tmux")
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def test_a_panel_stays_in_place_and_ctrl_c_leaves_the_terminal_as_it_was(terminal, tmp_path):
    words = ["train", "--n=2", "--code=sgd", "--lr=0.001", "--epochs=1000", "--threads=1"]
    words += [f"--train-dir={tmp_path / 'run'}", "--eval-freq=20", "--batch-size=8"]
    terminal.start(shlex.join([sys.executable, "-m", "atomo", *words]))
    terminal.shows("test top-1", "LeNet on Digits · sgd · training", "1 of 1 workers")
    assert terminal.ask("display", "-p", "#{cursor_flag}").strip() == "0"
    terminal.ask("send-keys", "C-c")
    screen = terminal.shows("\nexit 130", "LeNet on Digits · sgd · interrupted")
    # Lines of a slow evaluator may have scrolled it away.
    everything = terminal.ask("capture-pane", "-p", "-S", "-")
    assert "interrupted: finishing the step and writing a checkpoint ..." in everything
    assert screen.count("Interrupted") == 1
    assert "final test accuracy" in screen
    assert "^C" not in screen
    assert terminal.ask("display", "-p", "#{cursor_flag}").strip() == "1"
