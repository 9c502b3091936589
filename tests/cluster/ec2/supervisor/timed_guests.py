"""Guests and AWS by the clock of a night: launches, ends, and the fuses of the guests."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from cluster.ec2.faults.rig import PRICES
from cluster.ec2.support import cloud as emulator
from cluster.ec2.support.cloud import Cloud, Forward, Reply, refusal

from atomo_cluster.ec2.aws.inventory import Instance

__all__ = ["Clock", "Guests"]

BEGIN: Final = datetime(2026, 1, 1, 20, tzinfo=timezone.utc)
SHORTAGE: Final = (76, 496)  # minutes
SPOT_USD: Final = 0.035
DISK_USD: Final = 100 * PRICES["gp3"] / 730  # per hour
ID: Final = re.compile(r"\bi-[0-9a-f]{17}\b")
NONE: Final = refusal("InsufficientInstanceCapacity", "We have no capacity")


class Clock:
    """The clock of the night, in minutes."""

    minutes = 0

    def now(self) -> datetime:
        """Returns the time."""
        return BEGIN + timedelta(minutes=self.minutes)

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Lets the modules of the cluster's tool tell this time."""
        clock = self

        class Simulated(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return clock.now()

        import_module("atomo_cluster.ec2.commands.clusters.extend")
        with ExitStack() as stack:
            for name, module in [*sys.modules.items()]:
                if name.startswith("atomo_cluster") and getattr(module, "datetime", 0) is datetime:
                    stack.enter_context(patch.object(module, "datetime", Simulated))
            yield


@dataclass
class Life:
    """The life of an instance, and the end that its guest keeps to whatever AWS says."""

    begin: datetime
    deadline: datetime
    spot: bool
    end: datetime | None = None
    told: bool = False  # True if EC2 says when it has ended

    def usd(self, now: datetime) -> float:
        """Returns its cost until now."""
        price = (
            SPOT_USD if self.spot else PRICES["m5.large"] + PRICES["address"]
        )  # moto has no more
        return (price + DISK_USD) * ((self.end or now) - self.begin).total_seconds() / 3600


class Guests:
    """The instances of the account by the clock of the night."""

    def __init__(self, cloud: Cloud, clock: Clock, folder: Path) -> None:
        self._cloud, self._clock, self._folder = cloud, clock, folder
        self.lives: dict[str, Life] = {}
        self.hung: set[str] = set()
        self._script = ""

    @contextmanager
    def served(self) -> Iterator[None]:
        """Has AWS answer by this clock."""
        answers = {"RunInstances": self._launch, "CreateFleet": self._launch,
                   "CreateLaunchTemplate": self._remember, "TerminateInstances": self._terminate,
                   "DescribeInstances": self._describe}  # fmt: skip
        with patch.dict(emulator.OWN, answers):
            yield

    def _remember(self, cloud: Cloud, words: dict[str, str], body: bytes, go: Forward) -> None:
        self._script = words["LaunchTemplateData.UserData"]

    def _launch(self, cloud: Cloud, words: dict[str, str], body: bytes, go: Forward) -> Reply:
        if SHORTAGE[0] <= self._clock.minutes < SHORTAGE[1]:
            return NONE
        reply, now = go(), self._clock.now()
        script = base64.b64decode(words.get("UserData", self._script)).decode()
        minutes = re.search(r"shutdown -h \+(\d+)", script)
        assert minutes, script
        deadline = now + timedelta(minutes=int(minutes[1]))
        for id in set(ID.findall(reply.body.decode())):
            self.lives[id] = Life(now, deadline, words["Action"] == "CreateFleet")
            cloud.starts[id] = f"{now:%Y-%m-%dT%H:%M:%S}.000Z"
        return reply

    def _terminate(self, cloud: Cloud, words: dict[str, str], body: bytes, go: Forward) -> Reply:
        for id in [value for key, value in words.items() if key.startswith("InstanceId")]:
            if self.lives[id].end is None:
                self.lives[id].end, self.lives[id].told = self._clock.now(), True
        return go()

    def _describe(self, cloud: Cloud, words: dict[str, str], body: bytes, go: Forward) -> Reply:
        reply = emulator.describe_instances(cloud, words, body, go)
        text = reply.body.decode()
        for id, life in self.lives.items():
            when = f"User initiated ({life.end:%Y-%m-%d %H:%M:%S} GMT)" if life.told else ""
            if life.end is not None:
                ours = rf"(<instanceId>{id}</instanceId>(?:(?!<instanceId>).)*?<reason>)[^<]*"
                text = re.sub(ours, rf"\g<1>{when}", text, flags=re.DOTALL)
        return Reply(reply.status, text.encode(), reply.kind)

    def alive(self) -> list[str]:
        """Returns the instances that run, the oldest first."""
        return [id for id, life in self.lives.items() if life.end is None]

    def answers(self, host: Instance) -> bool:
        """True if a host's sshd answers."""
        return self.lives[host.id].end is None and host.id not in self.hung

    def take(self, id: str) -> None:
        """Ends an instance as a spot interruption or its own fuse does."""
        self.lives[id].end = self._clock.now()
        self._cloud.moto.client().terminate_instances(InstanceIds=[id])

    def burn(self) -> None:
        """Ends the instances whose guests have reached their deadlines."""
        for id in self.alive():
            moved = self._folder / f"fuse-{id}"
            if moved.exists():
                self.lives[id].deadline = datetime.fromtimestamp(
                    int(moved.read_text()), BEGIN.tzinfo
                )
            if self._clock.now() >= self.lives[id].deadline:
                self.take(id)
