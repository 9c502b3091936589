"""Ranks go to the hosts that are left."""

from dataclasses import replace
from pathlib import Path

import pytest

from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.launch.jobs.rank_placement import fit_to_slots, job_hosts, rank_hosts


def listed(tmp_path: Path, text: str, n: int = 4, **others: int) -> Settings:
    path = tmp_path / "hosts"
    path.write_text(text)
    return replace(Settings(), hostfile=str(path), n=n, **others)


def test_ranks_of_a_lost_host_go_to_the_others(tmp_path):
    chosen = listed(tmp_path, "a\nb slots=1\nc\n", n=5)
    assert job_hosts(chosen) == ["a", "b", "c"]
    assert rank_hosts(chosen, ()) == ("a", "a", "b", "c", "c")
    assert rank_hosts(chosen, {"a"}) == ("b", "c", "c", "c", "c")  # the master's too
    assert fit_to_slots(chosen, {"a"}) == chosen
    assert job_hosts(Settings()) == []
    assert rank_hosts(Settings(), ()) == ()
    with pytest.raises(ConfigError, match="none of the hosts a, b, c answers"):
        rank_hosts(chosen, {"a", "b", "c"})


def test_where_slots_do_not_suffice_there_are_fewer_workers(tmp_path):
    chosen = listed(tmp_path, "a slots=2\nb slots=2\nc slots=1\n", n=5, num_aggregate=4)
    left = fit_to_slots(chosen, {"b"})
    assert (left.n, left.num_aggregate, left.min_workers) == (3, 2, 2)  # half of those it had
    assert rank_hosts(left, {"b"}) == ("a", "a", "c")
    with pytest.raises(ConfigError, match=r"slots for 2 processes.*--min-workers is 2"):
        fit_to_slots(chosen, {"b", "c"})
    spared = fit_to_slots(replace(chosen, n=4, spares=2, num_aggregate=3), {"b"})
    assert (spared.n, spared.spares) == (3, 0)  # whoever waits goes first
    assert fit_to_slots(replace(chosen, n=3, spares=2, num_aggregate=2), {"c"}).spares == 1
    without = replace(chosen, comm_type="Allgather", num_aggregate=0)
    assert fit_to_slots(without, {"b"}).n == 5
    assert [
        fit_to_slots(replace(without, n=3, spares=2), away).spares for away in ({"b"}, {"c"})
    ] == [
        0,
        1,
    ]
