"""What a GPU alone can show; `tests/test_device.py` has the same on a device that is pretended."""

from pathlib import Path

import pytest
import torch
from test_device import every_case, normal, sections_on_the_cpu, seeded
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atomo
from atomo.codecs import make_codec
from atomo.memory import make_memory

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; PyTorch sees none"),
]


@every_case
def test_a_payload_is_the_cpus_and_decodes_on_either_side(codec, shape):
    there, kept = normal(shape).cuda(), normal(shape, 2).cuda()
    payload = codec.encode(there, seeded())
    found = sections_on_the_cpu(codec, payload)
    expected = codec.sections(codec.encode(normal(shape), seeded()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    sums = [normal(shape, 3), normal(shape, 3).cuda(), normal(shape, 3).cuda()]
    arrived = codec.assemble(iter(found))
    for part, out in zip((arrived, arrived, payload), sums, strict=True):
        codec.add_decoded(part, out, 0.5)
    torch.testing.assert_close(sums[1].cpu(), sums[0])
    torch.testing.assert_close(sums[2].cpu(), sums[0])
    codec.encode_residual(there, kept, seeded())
    left = normal(shape, 2)
    codec.encode_residual(normal(shape), left, seeded())
    torch.testing.assert_close(kept.cpu(), left)


@pytest.mark.parametrize("spec", ["topk", "dgc", "signsgd", "natural"])
def test_deterministic_bytes_are_the_cpus(spec):
    codec, gradient = make_codec(spec), normal((700, 1003)).round(decimals=2)  # with equal entries
    there = sections_on_the_cpu(codec, codec.encode(gradient.cuda(), seeded()))
    for one, other in zip(there, codec.sections(codec.encode(gradient, seeded())), strict=True):
        assert one.equal(other)


@pytest.mark.parametrize("spec", ["topk(ratio=0.01)", "qsgd", "efsignsgd", "dgc(ratio=0.01)"])
def test_memory_does_not_grow_over_1000_steps(spec):
    codec, memory = make_codec(spec), make_memory("residual")
    gradient, out = normal((300, 1000)).cuda(), torch.zeros(300, 1000, device="cuda")
    held = []
    for step in range(1000):
        payload = memory.encode(codec, gradient.clone(), {"w": gradient.shape}, seeded(step))
        codec.add_decoded(payload, out)
        del payload
        held.append(torch.cuda.memory_allocated())
    assert held[-1] <= held[10]


@pytest.fixture
def nccl(tmp_path: Path):
    """A group of this process alone: NCCL takes one rank of a group on a GPU."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "amp"])
@pytest.mark.parametrize("spec", ["topk(ratio=1.0)", "qsgd", "signsgd", "powersgd(rank=2)"])
def test_the_hook_averages_over_nccl(spec, scaled):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
    ddp = DistributedDataParallel(model, device_ids=[0])
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    state, hook = atomo.ddp_hook(ddp, spec, scaler=scaler if scaled else None)
    ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs, labels = normal((32, 40)).cuda(), torch.arange(32, device="cuda") % 10
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=scaled):
            loss = nn.functional.cross_entropy(ddp(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss))
    assert losses[-1] < losses[0]


@pytest.mark.usefixtures("nccl")
def test_what_is_sent_whole_is_the_gradient_itself():
    """With every entry sent, a world of one trains as without the hook."""
    ends = []
    for hooked in (False, True):
        torch.manual_seed(1)
        ddp = DistributedDataParallel(nn.Linear(40, 10).cuda(), device_ids=[0])
        if hooked:
            ddp.register_comm_hook(*atomo.ddp_hook(ddp, "topk(ratio=1.0)", memory="none"))
        ddp(normal((32, 40)).cuda()).square().mean().backward()
        ends.append(ddp.module.weight.grad.clone())
    torch.testing.assert_close(*ends, rtol=0, atol=0)
