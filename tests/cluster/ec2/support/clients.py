"""Clients of AWS that are made once: making a client takes longer than most of its work
in tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from atomo_cluster.ec2.aws.client import session

__all__ = ["Remembering"]

AROUND = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID")


def credentials() -> dict[str, str]:
    """Returns the credentials of this moment, where a session keeps those that it met first."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    return {name.lower(): os.environ[name] for name in names if name in os.environ}


class Remembering:
    """A session that caches its clients by their arguments; `watch` may change a new one."""

    def __init__(self, watch: Callable[[Any], Any] = lambda client: client) -> None:
        self._watch = watch
        self._made: dict[tuple[object, ...], Any] = {}

    def create_client(self, service: str, **how: Any) -> Any:
        """Returns a client of a service."""
        around = [os.environ.get(name) for name in AROUND]
        key = (service, how["region_name"], how["endpoint_url"], *around)
        if key not in self._made:
            made = session().create_client(service, **how, **credentials())
            self._made[key] = self._watch(made)
        return self._made[key]
