"""Several threads that compress change nothing but the time."""

import pytest
import torch
from support.harness import run_threads, settings
from support.selection import slow_but

from atomo.errors import CodecError
from atomo.training.checkpoints.checkpoint import load
from atomo.training.loop import worker


def trained(folder, **changes: object) -> dict[str, torch.Tensor]:
    """Trains a few steps, and returns all tensors of the checkpoint."""
    chosen = settings(folder, network="LeNet", fusion_mb=0.05, n=3, max_steps=4, **changes)
    run_threads(chosen)
    snapshot = load(folder, 4)
    states = [
        {f"{rank}/{name}": tensor for name, tensor in state.items()}
        for rank, state in enumerate(snapshot.workers)
    ]
    return dict(snapshot.model) | states[0] | states[1]


CASES = [
    {"code": "svd"},
    {"code": "topk(ratio=0.05)"},
    {"code": "dgc(ratio=0.05)", "memory": "dgc(clip=1.0)"},
    {"code": "qsgd", "code_schedule": "0.01: onebit"},
]


@pytest.mark.long(
    cases=(
        "qsgd",
        "topk",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    slow_but(CASES[:2], CASES),
    ids=lambda changes: str(changes["code"]),
)
def test_the_same_weights_and_memories_bit_for_bit(tmp_path, monkeypatch, changes):
    alone = trained(tmp_path / "one", **changes)
    # Only these: PyTorch adds up in another order on more threads.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    several = trained(tmp_path / "three", **changes)
    assert alone.keys() == several.keys()
    assert [name for name in alone if not alone[name].equal(several[name])] == []


def test_what_a_thread_cannot_encode_ends_the_step(tmp_path, monkeypatch):
    def broken(*arguments: object) -> None:
        raise CodecError("planted")

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(worker.Compressor, "_encode", broken)
    with pytest.raises(CodecError, match="planted"):
        run_threads(settings(tmp_path, network="FC", max_steps=2))
