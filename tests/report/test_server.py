"""The server of a page: on this machine alone, one path, and no file of a request's choosing."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.run_folders import parse_page, step_line, write_run

from atomo.cli import main
from atomo.errors import ConfigError
from atomo.report.run_page import run_html
from atomo.report.server import page_server


@contextmanager
def served(folder) -> Iterator[int]:
    """Yields the port of a server of a run."""
    with page_server(lambda: run_html(folder, 10)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def ask(port, path="/", method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def test_the_page_grows_with_the_run(tmp_path):
    folder = write_run(tmp_path, end="")
    with served(folder) as port:
        response, text = ask(port)
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "Unfinished after 20 steps" in parse_page(text).text
        assert '<meta http-equiv="refresh" content="10">' in text
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(step_line(21) + "\n" + step_line(22)[:50])
        assert "Unfinished after 21 steps" in ask(port)[1]
    assert {path.name for path in folder.iterdir()} == {
        "metrics.jsonl", "settings.toml", "evaluations.jsonl"
    }  # fmt: skip


@pytest.mark.parametrize(
    "path",
    ["/settings.toml", "/../settings.toml", "/..%2fsettings.toml", "//etc/passwd", "/%2e%2e/x",
     "/report.html", "/\\..\\x", "http://127.0.0.1/settings.toml", "*"],
)  # fmt: skip
def test_no_other_path_is_answered(tmp_path, path):
    with served(write_run(tmp_path)) as port:
        response, text = ask(port, path)
        assert response.status == 404
        assert text == "only / is here\n"


@pytest.mark.parametrize("host", ["example.com", "example.com:80", "", "127.0.0.1.example.com:1"])
def test_other_names_of_this_machine_are_refused(tmp_path, host):
    with served(write_run(tmp_path)) as port:
        assert ask(port, host=host)[0].status == 403


def test_it_listens_on_this_machine_alone_and_only_reads(tmp_path):
    folder = write_run(tmp_path)
    with page_server(lambda: "x") as server:
        assert server.server_address[0] == "127.0.0.1"
    with served(folder) as port:
        assert ask(port, method="HEAD")[1] == ""
        assert ask(port, method="POST")[0].status == 501
        assert ask(port, method="PUT")[0].status == 501


def test_a_folder_that_is_gone_is_an_error_of_one_request(tmp_path):
    folder = write_run(tmp_path / "x")
    with served(folder) as port:
        folder.rename(tmp_path / "y")
        response, text = ask(port)
        assert response.status == 500
        assert "is no folder" in text
        (tmp_path / "y").rename(folder)
        assert ask(port)[0].status == 200


def test_a_port_in_use_is_named():
    with page_server(lambda: "x") as server, pytest.raises(ConfigError, match="give a free one"):
        page_server(lambda: "x", server.server_port)
    with pytest.raises(ConfigError, match="--port 70000"):
        page_server(lambda: "x", 70_000)


def test_one_run_is_followed(tmp_path, capsys):
    run = str(write_run(tmp_path / "x"))
    assert main(["report", "--follow", run, run]) == 2
    assert "takes one run, not 2" in capsys.readouterr().err
    assert main(["report", "--follow", str(tmp_path / "missing")]) == 2
