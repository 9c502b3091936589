"""Real sshds for the current user, each a host of its own: home folder, keys and programs.

OpenSSH's server runs in its inetd mode, one process a connection, behind a socket of this process:
so there is no port to guess, and none of them outlives its connection.
"""

import os
import shlex
import shutil
import socket
import socketserver
import subprocess
import threading
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
# What saves time: with a high SHLVL bash does not read this user's own start files, and the default
# key exchange takes a tenth of a second.
CONFIG = """
HostKey {folder}/host_key
AuthorizedKeysFile {home}/.ssh/authorized_keys
ForceCommand {folder}/enter
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
StrictModes no
PermitUserRC no
PrintMotd no
SetEnv SHLVL=9
KexAlgorithms curve25519-sha256
LogLevel QUIET
"""
# Commands see a home folder and programs of their own; nothing of this machine's is touched.
ENTER = """#!/bin/bash
export HOME={home} PATH={bin}:$PATH ATOMO_ROOT={root}
cd
exec bash -c "${{SSH_ORIGINAL_COMMAND:-exit 0}}"
"""
SUDO = '#!/bin/bash\n[ "$1" = -n ] && shift\nexec "$@"\n'
RECORDER = '#!/bin/bash\necho "$(basename "$0") $*" >>"$HOME/called"\n'
# Nothing is mounted here: it is noted, and found again.
MOUNT = (
    RECORDER + 'for last; do :; done\necho "${@: -2:1}" >"$HOME/mounted$(echo "$last" | tr / _)"\n'
)
FINDMNT = (
    '#!/bin/bash\nfor last; do :; done\ncat "$HOME/mounted$(echo "$last" | tr / _)" 2>/dev/null\n'
)
PROGRAMS = {"sudo": SUDO, "mount": MOUNT, "findmnt": FINDMNT} | dict.fromkeys(
    ("mount.nfs4", "apt-get", "dnf", "chown", "cloud-init", "pkill", "exportfs", "systemctl"),
    RECORDER,
)


def make_key(path: Path) -> str:
    """Returns a new ed25519 key; its public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_name(path.name + ".pub").read_text()


class Host:
    """A host with its own sshd."""

    def __init__(self, folder: Path, admitted: str) -> None:
        self.folder, self.home, self.bin = folder, folder / "home", folder / "bin"
        for made in (self.home / ".ssh", self.bin, folder / "root/etc/atomo"):
            made.mkdir(parents=True)
        (folder / "root/etc/atomo/deadline").write_text("4102444800")
        self.admit(admitted)
        self.public = make_key(folder / "host_key")
        for name, text in PROGRAMS.items():
            self.program(name, text)
        where = {"folder": folder, "home": self.home, "bin": self.bin, "root": folder / "root"}
        (folder / "config").write_text(CONFIG.format(**where))
        (folder / "enter").write_text(ENTER.format(**where))
        (folder / "enter").chmod(0o755)
        self.start()

    def program(self, name: str, text: str) -> None:
        """Installs a program on this host alone."""
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def admit(self, public: str) -> None:
        """Lets in the owner of this key alone."""
        (self.home / ".ssh/authorized_keys").write_text(public)

    def start(self) -> None:
        """Listens."""
        command = [SSHD, "-i", "-f", self.folder / "config"]

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                subprocess.run(command, stdin=self.request, stdout=self.request,
                               stderr=subprocess.DEVNULL, check=False)  # fmt: skip

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, block_on_close = True, True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Connection)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Listens no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def called(self) -> str:
        """The calls of programs that only note them."""
        path = self.home / "called"
        return path.read_text() if path.exists() else ""


def why_not() -> str:
    """Returns why sshd cannot run here; empty if it can."""
    if SSHD is None:
        return "no sshd on this machine: apt install openssh-server"
    if shutil.which("ssh") is None:
        return "no ssh on this machine: apt install openssh-client"
    if os.geteuid() == 0 and not Path("/run/sshd").is_dir():
        try:
            Path("/run/sshd").mkdir()  # which a package's start script makes elsewhere
        except OSError as error:
            return f"sshd needs /run/sshd: {error}"
    return ""


def closed_port() -> int:
    """Returns a port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ssh_config(path: Path, ports: dict[str, int]) -> str:
    """Returns an ssh_config file that leads addresses to ports here."""
    path.write_text("".join(
        f"Host {shlex.quote(name)}\n  HostName 127.0.0.1\n  Port {port}\n"
        for name, port in ports.items()
    ))  # fmt: skip
    return str(path)
