"""Files of replicas in the checkpoint folders of frameworks."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hooks.local_ranks import adamw, anchor_of, replicas, steps
from hooks.loops import flat
from torch import Tensor, nn

from atomo.errors import CheckpointError
from atomo.hooks.local.files import load_replica, path_of, save_replica
from atomo.hooks.states.packed import pack, unpack

CODE = "topk(ratio=0.2)"


def memory_of(optimizer: Any, rank: int) -> Tensor:
    memories = optimizer.exchange.state_dict()["memories"][str(rank)]
    return torch.cat([memories[name].flatten() for name in sorted(memories)])


@pytest.mark.slow(cases=("1", "3"))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_files_of_two_ranks_continue_on_any_number(tmp_path, size):
    kept: dict[int, Tensor] = {}
    moments: dict[int, Any] = {}
    anchors: list[Tensor] = []

    def save(rank: int, network: nn.Module, optimizer: Any) -> None:
        steps(2, 7)(rank, network, optimizer)
        save_replica(optimizer._replica, tmp_path)
        kept[rank] = memory_of(optimizer, rank)
        moments[rank] = copy.deepcopy(optimizer.optimizer.state_dict()["state"])
        anchors.append(anchor_of(network, optimizer))
        steps(2, 11, 7)(rank, network, optimizer)

    sums: list[Tensor] = []

    def load(rank: int, network: nn.Module, optimizer: Any) -> None:
        state = load_replica(optimizer._replica, tmp_path)
        assert state is not None
        optimizer._replica.load_inner(state)
        own = optimizer.optimizer.state_dict()["state"]
        assert own[0]["exp_avg"].equal(moments[rank % 2][0]["exp_avg"])
        sums.append(memory_of(optimizer, rank))
        assert anchor_of(network, optimizer).equal(anchors[0])
        assert optimizer.steps == (7 if size == 2 else 4)
        assert flat(network).equal(anchors[0]) == (size != 2)
        if size == 2:
            steps(2, 11, 7)(rank, network, optimizer)

    whole, _ = replicas(2, CODE, save, adamw, every=4)
    again, _ = replicas(size, CODE, load, adamw, every=4)
    torch.testing.assert_close(torch.stack(sums).sum(0), kept[0] + kept[1])
    if size == 2:
        assert all(flat(again[rank]).equal(flat(whole[rank])) for rank in range(2))


def test_a_folder_without_files_and_files_that_do_not_fit(tmp_path):
    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        replica = optimizer._replica
        assert load_replica(replica, tmp_path) is None
        save_replica(replica, tmp_path)
        path = path_of(tmp_path, 0, 0)
        data = path.read_bytes()
        for damaged, words in (
            (data[:-5], "the state of a replica is damaged"),
            (b"", "the state of a replica is damaged"),
            (pack({"steps": 3}), "it has no state of a replica"),
        ):
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=words):
                load_replica(replica, tmp_path)
        state = unpack(data)
        state["model"]["0.weight"] = torch.zeros(2)
        path.write_bytes(pack(state))
        with pytest.raises(CheckpointError, match=r"has weights '0\.weight', of another"):
            load_replica(replica, tmp_path)
        for rank_of_file, count in ((0, 5), (1, 6)):
            state = {**unpack(data), "replica": rank_of_file, "steps": count}
            state["exchange"]["ranks"] = 2
            path_of(tmp_path, 0, rank_of_file).write_bytes(pack(state))
        with pytest.raises(CheckpointError, match="are of different steps"):
            load_replica(replica, tmp_path)

    replicas(1, CODE, body, every=4)


def test_a_value_that_is_not_plain_cannot_be_saved():
    with pytest.raises(CheckpointError, match=r"cannot be saved: .*Path"):
        pack({"where": Path("here")})
