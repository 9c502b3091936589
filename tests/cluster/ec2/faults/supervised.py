"""A supervisor that loses a worker, replaces it, and ends all hosts once the job is done."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from cluster.ec2.support.cloud import Cloud

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.aws.tags import ROLE, as_dict
from atomo_cluster.ec2.invocation.document import Document
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.settings.yaml_file import load
from atomo_cluster.ec2.supervisor.background import Background
from atomo_cluster.ec2.supervisor.decision import Limits
from atomo_cluster.ec2.supervisor.event_log import NOTE, STARTED, EventLog
from atomo_cluster.ec2.supervisor.handover import master_settings
from atomo_cluster.ec2.supervisor.host_pool import HostPool
from atomo_cluster.ec2.supervisor.loop import Supervisor

__all__ = ["FakeJob", "host_pool_of", "is_started", "night", "now"]

LOOKS = 8  # steps of the supervisor, in which it must recover from a single fault
NONE: Mapping[str, str] = MappingProxyType({})
PUBLIC = "ssh-ed25519 AAAA atomo-cluster\n"


class FakeJob:
    """A job that goes on until it is told that it is done, and results that are safe."""

    withdrawn, needed = False, 1

    def __init__(self) -> None:
        self.running, self.code, self.safe = False, None, True
        self.hosts: tuple[str, ...] = ()

    def start(self, hosts: list[Instance], network: str) -> None:
        self.running, self.code = True, None
        self.hosts = tuple(host.id for host in hosts)

    def stop(self, told: bool = False) -> None:
        self.running = False

    def forget(self) -> None:
        self.code = None

    def sync(self) -> None: ...
    def finish(self) -> None: ...


def now() -> datetime:
    """Returns the time."""
    return datetime.now(timezone.utc)


def at_once(act: Callable[[], None]) -> "Future[None]":
    """Sets hosts up before the supervisor goes on."""
    future: Future[None] = Future()
    try:
        act()
    except Exception as error:  # raised where the result is read
        future.set_exception(error)
    else:
        future.set_result(None)
    return future


def host_pool_of(
    folder: Path,
    site: Callable[..., Any],
    reachable: Any = lambda host: True,
    background: Background = at_once,
    overrides: Mapping[str, str] = NONE,
) -> HostPool:
    """Returns the hosts of a cluster that was launched, as its supervisor sees them."""
    memory = folder / "master"
    memory.mkdir(exist_ok=True)
    settings = master_settings(load(folder / "cluster.yaml", overrides), "user/moto", "")
    settings = replace(settings, state_dir=str(memory), path_to_keyfile="")
    listed = {field.name: getattr(settings, field.name) for field in fields(settings)}
    (folder / "handed.yaml").write_text(json.dumps(listed))
    options = Namespace(config=folder / "handed.yaml", endpoint_url=None, hostfile=None)
    run = Run(options, Document(enabled=False))
    return HostPool(run, memory, PUBLIC, site, reachable, background)


class Clock:
    """A clock that its owner moves, a minute between looks."""

    def __init__(self) -> None:
        self._begin, self.minutes = now(), 0

    def now(self) -> datetime:
        """Returns the time."""
        return self._begin + timedelta(minutes=self.minutes)


def night(cloud: Cloud, folder: Path, words: Sequence[str] = ()) -> tuple[int, str]:
    """Loses a worker, runs until it is replaced and until all hosts have ended; returns 0 and the
    events.

    1: it was not replaced, or hosts were left. `words` are options and values of settings.
    """
    overrides = {name[2:]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    for left in (folder / "master").glob("**/*"):
        if left.is_file():
            left.unlink()
    pool, job = host_pool_of(folder, sshless, overrides=overrides), FakeJob()
    cloud.moto.client().terminate_instances(InstanceIds=[living(cloud)["worker"]])
    clock = Clock()
    story = EventLog(folder / "master" / "story.jsonl", clock.now)
    rules = Limits(max_usd=1e6, max_restarts=100, autostop=timedelta(minutes=30))
    supervisor = Supervisor(rules, job, pool, job, story, lambda: "", clock.now)
    with patch("atomo_cluster.ec2.supervisor.host_pool.bootstrap", lambda *_: None):
        for _ in range(LOOKS):
            supervisor.step()
            clock.minutes += 1
        whole = job.running and len(job.hosts) == 3 and is_started(story)
        job.running, job.code = False, 0
        for _ in range(LOOKS):
            supervisor.step()
            clock.minutes += 1
    told = "\n".join(event.text for event in story.events)
    return int(not whole or bool(living(cloud))), told


def is_started(story: EventLog) -> bool:
    """True if the job was started last. A fault afterwards only leaves a note."""
    kinds = [event.kind for event in story.events if event.kind != NOTE]
    return kinds[-1:] == [STARTED]


def sshless(run: Run, hosts: Any) -> Any:
    """Returns hosts on which every command succeeds."""
    return SimpleNamespace(ssh=SimpleNamespace(run=lambda *_: SimpleNamespace(code=0)))


def living(cloud: Cloud) -> dict[str, str]:
    """Returns a host of each role that runs."""
    wanted = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    batches = cloud.moto.client().describe_instances(Filters=wanted)["Reservations"]
    found = [one for batch in batches for one in batch["Instances"]]
    return {as_dict(one)[ROLE]: one["InstanceId"] for one in found}
