"""A rank that ends, by any exception, tells the others at once and gives a short reason."""

from pathlib import Path

import pytest
import torch
from support.harness import settings

from atomo.errors import CodecError, PeerLost
from atomo.training import rank
from atomo.training.loop.worker import Worker
from atomo.training.rank import run_rank
from atomo.transports import LocalTransport, network

LONG = 5_000_000  # characters


def fails(
    error: BaseException, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[LocalTransport]:
    """Returns the transports of a job of which one rank meets an error."""

    def end(*_: object) -> None:
        raise error

    transports = network(3)
    monkeypatch.setattr(Worker, "run", end)
    monkeypatch.setattr(rank, "Master", end)
    chosen = settings(tmp_path, network="FC", threads=1)
    threads = torch.get_num_threads()
    try:
        with pytest.raises(type(error)):
            run_rank(chosen, transports[number], lambda event: None, lambda: False)
    finally:
        torch.set_num_threads(threads)
    return transports


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (KeyboardInterrupt(), "this process was interrupted (SIGINT)\n"),
        (SystemExit(0), "SystemExit: 0\n"),
        (GeneratorExit("odd"), "GeneratorExit: odd\n"),
        (ValueError("a defect"), "ValueError: a defect\n"),
    ],
)
def test_a_worker_is_lost_alone(error, why, tmp_path, monkeypatch, capfd):
    transports = fails(error, 2, tmp_path, monkeypatch)
    with pytest.raises(PeerLost, match="rank 2 is gone"):
        transports[0].receive(2, 0.0, "a word")
    assert transports[2].aborted is None
    output = capfd.readouterr().err
    assert output.startswith("atomo: lost rank 2 (worker), before the first step: ")
    assert output.endswith(why)


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (SystemExit(0), 1)])
def test_a_master_takes_the_job_along(error, code, tmp_path, monkeypatch, capfd):
    transports = fails(error, 0, tmp_path, monkeypatch)
    assert transports[0].aborted == code
    assert capfd.readouterr().err.startswith("atomo: rank 0 (master), before the first step: ")


@pytest.mark.parametrize("error", [ValueError("x" * LONG), CodecError("x\n" * LONG)])
def test_a_text_of_megabytes_is_cut(error, tmp_path, monkeypatch, capfd):
    fails(error, 2, tmp_path, monkeypatch)
    output = capfd.readouterr().err
    assert len(output) < 70_000
    assert "characters left out" in output


def test_what_a_terminal_would_obey_is_shown(tmp_path, monkeypatch, capfd):
    fails(ValueError("\x1b]0;title\x07\r\x9b31m"), 1, tmp_path, monkeypatch)
    assert r"ValueError: \x1b]0;title\x07\r\x9b31m" in capfd.readouterr().err
