"""Files of probes: the results are read back unchanged, and nothing else is read."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atomo.errors import DataError
from atomo.planning import Costs, Link, Profile
from atomo.planning.costs import Cost
from atomo.planning.probe import Probe, ProbeSubject, read_probe, write_probe

SUBJECT = ProbeSubject(("h1", "h2"), "LeNet", "Digits", 0, 32, 1)
GRADIENT = {
    "weight": torch.empty(3, 4, device="meta"),
    "bias": torch.empty(3, device="meta"),
}
COSTS = Costs("topk", (Cost(0.1, 0.2, 30.0), Cost(0.3, 0.4, 50.0)), Cost(), 2, holds=True)
FOUND = Probe(
    Profile(0.5, (1.0, 3.0), 3.0, GRADIENT, 0.25),
    0.75,
    {
        "ParameterServer": Link(1e6, 1e-3, 16384.0, rested_bytes=8192.0),
        "Allgather": Link(2e6, 2e-3, 0.0, ((8e3, 3e6), (4e4, 2e6))),
    },
    (("Allgather", COSTS), ("Allreduce", replace(COSTS, spec="bf16", holds=False, half=True))),
)


def test_a_probe_comes_back_as_it_was(tmp_path: Path) -> None:
    write_probe(tmp_path / "probe.json", SUBJECT, FOUND)
    subject, probe = read_probe(tmp_path / "probe.json")
    assert (subject, probe.links, probe.costs) == (SUBJECT, FOUND.links, FOUND.costs)
    assert probe.slowing == 0.75
    profile = FOUND.profile
    assert replace(probe.profile, gradient={}) == replace(profile, gradient={})
    assert probe.profile.sizes == profile.sizes == (12, 48)
    assert [*tmp_path.iterdir()] == [tmp_path / "probe.json"]
    assert [*json.loads((tmp_path / "probe.json").read_text())["links"]] == ["Bcast", "Allgather"]


def test_all_numbers_that_are_gone_by_are_in_a_row() -> None:
    assert FOUND.numbers[:6] == (0.5, 3.0, 0.25, 0.75, 1.0, 3.0)
    assert FOUND.numbers[6:10] == (1e6, 1e-3, 16384.0, 8192.0)
    assert FOUND.numbers[10:14] == (2e6, 2e-3, 0.0, 0.0)
    assert FOUND.numbers[14:18] == (8e3, 3e6, 4e4, 2e6)
    assert FOUND.numbers[18:] == 2 * (0.0, 0.0, 0.0, 0.1, 0.2, 30.0, 0.3, 0.4, 50.0)


def put(*path: str | int, value: Any) -> Callable[[Any], None]:
    def damage(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (put("version", value=2), "version 2, not 1"),
        (put("forward_s", value=-1), "forward_s is -1"),
        (put("slowing", value=1.5), "slowing is 1.5"),
        (put("update_s", value="1"), "update_s is '1'"),
        (put("ready_s", value=[1.0]), "1 times of 2 gradients"),
        (put("parameters", "bias", value=[-3]), "the shape [-3]"),
        (put("parameters", "bias", value=[2**20] * 3), "a parameter of the shape"),
        (put("links", "Bcast", "bytes_per_s", value=0), "no bandwidth"),
        (put("links", "Bcast", value=3), "subscriptable"),
        (put("costs", 0, 1, "each", value=[]), "costs of 0 tensors, not of 2"),
        (put("costs", 0, 1, "message", "encode_s", value=float("nan")), "encode_s is nan"),
        (put("subject", value={"hosts": []}), "no 'network'"),
        (lambda document: document.pop("costs"), "no 'costs'"),
    ],
)
def test_what_is_no_probe_is_named(
    tmp_path: Path, damage: Callable[[Any], None], said: str
) -> None:
    file = tmp_path / "probe.json"
    write_probe(file, SUBJECT, FOUND)
    document = json.loads(file.read_text())
    damage(document)
    file.write_text(json.dumps(document))
    with pytest.raises(DataError) as raised:
        read_probe(file)
    assert said in str(raised.value)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize("text", ["", "[1, 2", "3", "[" * 100_000])
def test_what_is_no_document_is_no_probe(tmp_path: Path, text: str) -> None:
    file = tmp_path / "probe.json"
    file.write_text(text)
    with pytest.raises(DataError, match="is no probe"):
        read_probe(file)
    with pytest.raises(DataError, match="cannot be read"):
        read_probe(tmp_path / "none.json")
