"""Start-up time and memory of each command of tools/pytorch_ec2.py.

    python benchmarks/cluster_commands.py --repeat 5

The start-up time of a command ends at its first request to AWS or, without a request, at its end. A
local server stands in for AWS and refuses all requests. The figures are the minimum of several
runs: elapsed seconds, seconds of processor time, and the peak of memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
TOOL = ROOT / "tools" / "pytorch_ec2.py"
WORDS = {
    "cheapest": ["--vcpus", "4"],
    "extend": ["1"],
    "iam": ["--check"],
    "resize": ["3"],
    "run_command": ["all", "true"],
    "stop": ["1"],
    "supervise": ["--job", "x"],
    "upload": [str(TOOL), "data"],
}
REFUSAL = (
    b"<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>no</Message></Error>"
    b"</Errors><RequestID>r</RequestID></Response>"
)


class Refusing(BaseHTTPRequestHandler):
    """Server that refuses all requests, and records their times."""

    request_times: list[float] = []  # noqa: RUF012

    def do_POST(self) -> None:
        """Refuses a request."""
        self.request_times.append(time.monotonic())
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(400)
        self.send_header("Content-Length", str(len(REFUSAL)))
        self.end_headers()
        self.wfile.write(REFUSAL)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Writes no log."""


def started(words: list[str], around: dict[str, str], folder: str) -> tuple[float, float, float]:
    """Runs a command; returns the seconds of start-up and of processor time, and the MB."""
    Refusing.request_times.clear()
    line = [os.path.abspath(sys.executable), str(TOOL), *words]
    start = time.monotonic()
    process = subprocess.Popen(line, cwd=folder, env=around, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    usage = os.wait4(process.pid, 0)[2]
    first = Refusing.request_times[0] if Refusing.request_times else time.monotonic()
    return first - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def main() -> None:
    """Prints a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    from atomo_cluster.ec2.cli import COMMANDS

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    around = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
              "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}  # fmt: skip
    sys.stdout.write("| command | seconds | of processor | MB |\n| --- | --- | --- | --- |\n")
    for name in COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            words = [
                name,
                *WORDS.get(name, []),
                "--name",
                "one",
                "--state-dir",
                folder,
                "--ssh-from",
                "192.0.2.1/32",
            ]
            measured = [started(words, around, folder) for _ in range(repeat)]
        wall, cpu, memory = (min(column) for column in zip(*measured, strict=True))
        sys.stdout.write(f"| {name} | {wall:.2f} | {cpu:.2f} | {memory:.0f} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
