"""Shells complete commands, options and names by the scripts of `atomo completion`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from atomo.cli import COMMANDS, main
from atomo.codecs import CODECS
from atomo.errors import ConfigError

# Completes the last word; zsh's own functions need a terminal, so that these print instead.
BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _atomo; printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { }; _files() { print files }; compadd() { shift; print -l -- "$@" }
_describe() { local name=${@[-1]}; print -l -- "${(@)${(@P)name}%%:*}" }
source "$1"; shift
words=("$@"); CURRENT=$#; _atomo
"""
FISH = "source $argv[1]; complete -C (string join -- ' ' $argv[2..])"


def completer(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    """Returns a function that lists what a shell offers for a command line."""
    if shutil.which(shell) is None:
        pytest.skip(f"NOT TESTED: no {shell} here")
    assert main(["completion", shell]) == 0
    script = folder / f"atomo.{shell}"
    script.write_text(capsys.readouterr().out)
    start = {
        "bash": ["bash", "--norc", "-c", BASH, "bash"],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh"],
        "fish": ["fish", "--no-config", "-c", FISH],
    }[shell]

    def complete(*words: str) -> list[str]:
        done = subprocess.run(
            [*start, script, *words], capture_output=True, text=True, timeout=600, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        names = [line.partition("\t")[0] for line in done.stdout.splitlines()]
        return [name for name in names if name.startswith(words[-1])]

    return complete


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_options_and_names_are_completed(shell, tmp_path, capsys):
    complete = completer(shell, tmp_path, capsys)
    assert {*complete("atomo", "")} == {*COMMANDS}
    assert complete("atomo", "thr") == ["throughput"]
    assert {"--lr", "--lr-gamma"} <= {*complete("atomo", "train", "--lr")}
    assert complete("atomo", "report", "--lr") == []
    assert complete("atomo", "report", "--fol") == ["--follow"]
    assert {*complete("atomo", "train", "--code", "")} == {*CODECS}
    assert complete("atomo", "sweep", "--conf") == ["--config"]
    assert {*complete("atomo", "train", "--report", "")} == {"yes", "no"}


def test_another_shell_is_refused(capsys):
    assert main(["completion", "tcsh"]) == ConfigError.exit_code
    assert "choose from bash, zsh, fish" in capsys.readouterr().err.replace("'", "")
