"""The host file, and who runs where."""

import pytest

from atomo.errors import ConfigError
from atomo.launch.jobs.hosts import Host, assign_processes, read_hosts


def test_comments_and_empty_lines_are_no_hosts(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# first\n\n10.0.0.1\n  worker-1.example slots=4   # at most four\nfe80::1\n")
    assert read_hosts(path) == [Host("10.0.0.1"), Host("worker-1.example", 4), Host("fe80::1")]


@pytest.mark.parametrize(
    "line",
    ["a b", "a slots", "a slots=0", "a slots=-1", "a slots=2 x", "-a", "a;b", "a,b", "$(id)", "ä"],
)
def test_a_bad_line_is_named_by_its_number(line, tmp_path):
    path = tmp_path / "hosts"
    path.write_text(f"# hosts\ngood\n{line}\n")
    with pytest.raises(ConfigError, match=r"hosts:3: .* is not a host; write `HOST` or"):
        read_hosts(path)


def test_a_file_of_no_hosts_is_refused(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# none\n")
    with pytest.raises(ConfigError, match="names no host"):
        read_hosts(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_hosts(tmp_path / "nowhere")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="hosts"):
        read_hosts(path)


@pytest.mark.parametrize(
    ("hosts", "processes", "counts"),
    [
        ([Host("a")], 3, [("a", 3)]),
        ([Host("a"), Host("b")], 3, [("a", 2), ("b", 1)]),
        ([Host("a"), Host("b"), Host("c")], 2, [("a", 1), ("b", 1)]),
        ([Host("a", 1), Host("b")], 4, [("a", 1), ("b", 3)]),
        ([Host("a", 1), Host("b", 2)], 3, [("a", 1), ("b", 2)]),
        ([Host("a", 1), Host("b", 1), Host("a", 2)], 4, [("a", 3), ("b", 1)]),
    ],
)
def test_processes_are_dealt_out_in_turn(hosts, processes, counts):
    assert assign_processes(hosts, processes) == counts


def test_too_few_slots_are_counted():
    with pytest.raises(ConfigError, match="--n 4, but the host file has slots for 3 processes"):
        assign_processes([Host("a", 1), Host("b", 2)], 4)
