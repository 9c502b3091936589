"""Moto's server once for all tests, a fresh account and a folder with a configuration for each."""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster.ec2.support.clients import Remembering
from cluster.ec2.support.cloud import Cloud, Moto, write_cluster
from cluster.ec2.support.lab import Lab
from cluster.ec2.support.sshd import why_not

from atomo_cluster.ec2.cli import main


@dataclass(frozen=True)
class Result:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> Any:
        return json.loads(self.out)


Ec2 = Callable[..., Result]


@pytest.fixture(scope="session")
def proxy() -> Iterator[Cloud]:
    """Moto's server with the proxy before it, which commands take for AWS."""
    server = Moto()
    made = Cloud(server)
    yield made
    made.stop()
    server.stop()


@pytest.fixture(scope="session")
def clients() -> Remembering:
    """Returns the factory of clients that all tests share."""
    return Remembering()


@pytest.fixture
def cloud(proxy: Cloud, clients: Remembering, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """Returns an empty account."""
    proxy.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr("atomo_cluster.ec2.aws.client.session", lambda: clients)
    return proxy


class Clock:
    """Botocore's clock: its waits are counted, not waited."""

    def __init__(self) -> None:
        self.naps: list[float] = []

    def sleep(self, seconds_s: float) -> None:
        self.naps.append(seconds_s)


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between attempts at a call."""
    clock = Clock()
    monkeypatch.setattr("atomo_cluster.ec2.aws.deletion.BETWEEN_S", 0.0)
    monkeypatch.setattr("atomo_cluster.ec2.launch.launching.SETTLE_S", 0.0)
    for name in ("BETWEEN_S", "SETTLE_S"):
        monkeypatch.setattr(f"atomo_cluster.ec2.places.adoption.{name}", 0.0)
    monkeypatch.setattr("botocore.endpoint.time", clock)
    return clock.naps


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: Cloud) -> Path:
    """Returns the working folder, with a cluster of two workers in cluster.yaml."""
    monkeypatch.chdir(tmp_path)
    write_cluster(tmp_path / "cluster.yaml", state_dir=str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def ec2(folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ec2:
    """Returns a function that runs a command in this process; `answer` is the text that the user
    types.
    """

    def run(*words: str, answer: str = "") -> Result:
        capfd.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        code = main(list(words))
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def lab(ec2: Ec2, cloud: Cloud, folder: Path) -> Iterator[Lab]:
    """Returns a master and a worker that run, and let ssh in."""
    if reason := why_not():
        pytest.skip(f"NOT TESTED: {reason}")
    made = Lab(ec2, cloud, folder)
    yield made
    for host in made.hosts:
        host.stop()
