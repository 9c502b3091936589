"""AWS on a host of a virtual cluster, whose instances are the hosts before it.

    far_cloud.py SSH_CONFIG ADDRESS PORT HOST=ADDRESS ...

An instance is the next host that none has been. Its user data is run there as cloud-init would,
with another root than / and no effect on this machine; then its sshd lets in whom EC2's would.
"""

import base64
import re
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from cluster.ec2.support.cloud import OWN, Cloud, Forward, Moto, Reply

PRICES = {"m5.large": 0.096, "gp3": 0.08, "address": 0.005}
CHUNK = re.compile(r"<instanceId>(i-\w+)</instanceId>(?:(?!<instanceId>).)*", re.DOTALL)
ADDRESS = re.compile(r"<(privateIpAddress|ipAddress|publicIp)>[^<]*<")
BOOT = r"""
export ATOMO_ROOT=$HOME/root
mkdir -p "$HOME/stubs" "$ATOMO_ROOT$HOME/.ssh"
for name in shutdown systemctl; do
  printf '#!/bin/sh\necho "$0 $*" >>~/called\n' >"$HOME/stubs/$name"
  chmod 755 "$HOME/stubs/$name"
done
printf 'export ATOMO_ROOT=%q\n' "$ATOMO_ROOT" >"$HOME/.bashrc"
cat >"$HOME/user-data"
PATH=$HOME/stubs:$PATH bash "$HOME/user-data"
cat "$ATOMO_ROOT$HOME/.ssh/authorized_keys" >>"$HOME/.ssh/authorized_keys" || true
mkdir -p "$HOME/.aws"
printf '[default]\naws_%s = test\naws_%s = test\n' access_key_id secret_access_key \
  >"$HOME/.aws/credentials"
"""


class Hosts:
    """The table of hosts and their instances."""

    def __init__(self, config: str, hosts: list[tuple[str, str]]) -> None:
        self._config, self._free = config, hosts
        self._addresses: dict[str, str] = {}
        self._user_data = ""
        self._lock = threading.Lock()

    def remember_user_data(
        self, cloud: Cloud, words: dict[str, str], body: bytes, go: Forward
    ) -> Reply:
        """Stores the user data of ordered hosts."""
        given = words.get("UserData") or words.get("LaunchTemplateData.UserData", "")
        self._user_data = base64.b64decode(given).decode()
        return go()

    def replace_addresses(
        self, cloud: Cloud, words: dict[str, str], body: bytes, go: Forward
    ) -> Reply:
        """Puts the addresses of hosts in place of moto's."""
        reply = go()
        with self._lock:
            text = CHUNK.sub(self._placed, reply.body.decode())
        return Reply(reply.status, text.encode(), reply.kind)

    def _placed(self, match: re.Match[str]) -> str:
        id = match[1]
        if id not in self._addresses:
            name, self._addresses[id] = self._free.pop(0)
            say(f"{id} is {name}")
            command = ["ssh", "-F", self._config, name, BOOT]
            subprocess.run(command, input=self._user_data.encode(), check=True)
        return ADDRESS.sub(rf"<\1>{self._addresses[id]}<", match[0])


def say(line: str) -> None:
    """Tells who has started this."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(config: str, address: str, port: str, *pairs: str) -> None:
    """Serves until it is killed."""
    hosts = Hosts(config, [(name, at) for name, _, at in (pair.partition("=") for pair in pairs)])
    remember = hosts.remember_user_data
    OWN.update({"RunInstances": remember, "CreateLaunchTemplate": remember,
                "DescribeInstances": hosts.replace_addresses})  # fmt: skip
    cloud = Cloud(Moto(), where=(address, int(port)))
    cloud.prices = PRICES
    say("ready")
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
