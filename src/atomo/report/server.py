"""A server of the page of a run on this machine alone, while the run trains.

It binds the loopback address, and answers one path, `/`, with the page made anew: no path of a
request ever names a file. A request by another name than this machine's own is refused, since a
page of a stranger can make a browser send one to a name that leads here.
"""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from atomo.errors import AtomoError, ConfigError

__all__ = ["LOOPBACK", "page_server"]

LOOPBACK: Final = "127.0.0.1"
OWN_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
TIMEOUT_S: Final = 30.0  # of a connection on which nothing comes


def page_server(make_page: Callable[[], str], port: int = 0) -> ThreadingHTTPServer:
    """Returns a server that is bound, and not running yet.

    Args:
        make_page: returns the page; called at each request.
        port: 0: a free one, in `server_port`.

    Raises:
        ConfigError: the port cannot be bound.
    """

    class Handler(BaseHTTPRequestHandler):
        """Answers requests for the page."""

        timeout = TIMEOUT_S
        server_version, sys_version = "atomo", ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            status, text = self._page()
            body = text.encode(errors="replace")
            kind = "text/html" if status == 200 else "text/plain"
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def _page(self) -> tuple[int, str]:
            host = self.headers.get("Host", "")
            if (host.rpartition(":")[0] or host) not in OWN_NAMES:
                return 403, "only requests to this machine by its own name are answered\n"
            if self.path.partition("?")[0] != "/":
                return 404, "only / is here\n"
            try:
                return 200, make_page()
            except AtomoError as error:
                return 500, f"{error}\n"

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing."""

    try:
        return ThreadingHTTPServer((LOOPBACK, port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {port}: {error}; give a free one, or 0 for any") from error
