"""The choice of the transport of a job, and the number of ranks that its launcher reports."""

import pytest

from atomo.cli.rank import split_options
from atomo.errors import ConfigError
from atomo.transports import TRANSPORTS, connect, launched_size
from atomo.transports.torch_distributed import TORCHRUN


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the environment variables of launchers."""
    for name in [*TORCHRUN, *(size for place in TRANSPORTS.values() for size in place.sizes)]:
        monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_it_says_what_is_missing(monkeypatch):
    with pytest.raises(ConfigError, match=r"needs RANK, WORLD_SIZE, .* by torchrun"):
        connect("torch")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="needs WORLD_SIZE, MASTER_ADDR, MASTER_PORT in"):
        connect("torch")


def test_an_unknown_transport_is_told_which_there_are():
    with pytest.raises(ConfigError, match="mpi, torch"):
        connect("pigeon")


def test_each_launcher_says_how_many_ranks_it_started(monkeypatch):
    assert launched_size("mpi") is launched_size("torch") is None
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (launched_size("MPI"), launched_size("torch")) == ("4", "2")


def test_a_rank_takes_their_number_from_the_launcher_unless_it_is_given(monkeypatch):
    assert split_options(["--lr", "1"]) == ("mpi", ["--lr", "1"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ["--lr", "1", "--transport", "torch", "--n=3"]
    assert split_options(words) == ("torch", ["--n=2", "--lr", "1", "--n=3"])
    assert split_options(["--transport=torch"]) == ("torch", ["--n=2"])
    with pytest.raises(ConfigError, match="--transport: expected one argument"):
        split_options(["--transport"])
