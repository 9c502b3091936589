"""State files of each rank, in a folder of the caller's."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from hooks.loops import flat, on_ranks, steps, total

from atomo.errors import CheckpointError
from atomo.hooks.states.rank_files import exists, load_ranks, save_rank

CODE = "topk(ratio=0.05)"


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def saved(folder: Path, size: int, count: int = 3):
    """Optimizers that took some steps, and saved."""
    _, optimizers = on_ranks(size, CODE, steps(size, count), sgd)
    for optimizer in optimizers:
        save_rank(optimizer.exchange, folder)
    return optimizers


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_any_number_of_ranks_goes_on_with_the_same_sum(tmp_path, size):
    before = saved(tmp_path, 3)
    _, after = on_ranks(size, CODE, lambda rank, *_: None, sgd)
    for optimizer in after:
        load_ranks(optimizer.exchange, tmp_path)
        assert optimizer.exchange.state_dict()["step"] == 3
    torch.testing.assert_close(total(after), total(before))
    if size == 3:
        assert total(after).equal(total(before))


@pytest.mark.parametrize("code", ["dgc(ratio=0.1)", "powersgd(rank=2)"])
def test_vectors_and_factors_are_there_too(tmp_path, code):
    def halves(rank, network, optimizer):
        steps(2, 2)(rank, network, optimizer)
        save_rank(optimizer.exchange, tmp_path)

    def goes_on(rank, network, optimizer):
        load_ranks(optimizer.exchange, tmp_path)

    _, before = on_ranks(2, code, halves, sgd)
    _, after = on_ranks(2, code, goes_on, sgd)
    for one, other in zip(before, after, strict=True):
        mine, theirs = one.exchange.state_dict(), other.exchange.state_dict()
        assert mine["step"] == theirs["step"]
        for kind in ("factors", "memories"):
            torch.testing.assert_close(mine.get(kind), theirs.get(kind), rtol=0, atol=0)


@pytest.mark.slow
def test_files_of_another_step_are_not_mixed_in(tmp_path):
    saved(tmp_path, 2)
    newer = tmp_path / "newer"
    newer.mkdir()
    [first, second] = saved(newer, 2, 4)
    name = "atomo-model-0-rank-1.safetensors"
    shutil.copy(tmp_path / name, newer / name)
    load_ranks(first.exchange, newer)
    words = f"{newer / name} is of step 3 and 2 ranks; the checkpoint is of step 4 and 2 ranks"
    with pytest.raises(CheckpointError, match=re.escape(words)):
        load_ranks(second.exchange, newer)


def test_a_file_that_is_missing_or_damaged_is_named(tmp_path):
    [_, second] = saved(tmp_path, 2)
    path = tmp_path / "atomo-model-0-rank-1.safetensors"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CheckpointError, match=r"rank-1\.safetensors is damaged"):
        load_ranks(second.exchange, tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"rank-1\.safetensors is missing: every rank"):
        load_ranks(second.exchange, tmp_path)
    assert exists(tmp_path)
    assert not exists(tmp_path, model=1)


@pytest.mark.slow
def test_saving_again_leaves_one_whole_file_a_rank(tmp_path):
    saved(tmp_path, 2)
    models, [first, _] = on_ranks(2, CODE, steps(2, 5), sgd)
    save_rank(first.exchange, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"atomo-model-0-rank-{rank}.safetensors" for rank in range(2)
    ]
    assert flat(models[0]).equal(flat(models[1]))
