"""Behaviour that only a GPU can show; `tests/core/test_device.py` has the same on a fake device.

Where a CPU can take the same way, over gloo, it does so too, in a short form. The contract suite
on a GPU is `tests/gpu/test_cuda_contract.py`; tests of kernels take a GPU where there is one.
`ATOMO_DATA` names a folder with CIFAR-10 for the run that needs it.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from core.test_device import every_case, normal, sections_on_the_cpu, seeded
from hooks.ranks import run_ranks
from support.jobs import run
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atomo
from atomo.codecs import make_codec
from atomo.memory import make_memory
from atomo.training.checkpoints.checkpoint import load
from atomo.transports.mpi.device_memory import is_cuda_aware
from gpu import cuda_ranks

RANKS = Path(__file__).with_name("cuda_ranks.py")

ON_A_GPU = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; PyTorch sees none"),
]
LONG = 1000  # steps


def needs_a_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that nothing else can take."""
    for mark in ON_A_GPU:
        test = mark(test)
    return test


EITHER = pytest.mark.parametrize(
    "place",
    [pytest.param("cuda", marks=ON_A_GPU), pytest.param("cpu", marks=pytest.mark.slow)],
)


def held(place: str) -> int:
    """Returns the bytes of tensors on a GPU; 0 for a CPU, where nothing counts them."""
    return torch.cuda.memory_allocated() if place == "cuda" else 0


@needs_a_gpu
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


@needs_a_gpu
@pytest.mark.parametrize("spec", ["topk", "dgc", "signsgd", "natural"])
def test_deterministic_bytes_are_the_cpus(spec):
    codec, gradient = make_codec(spec), normal((700, 1003)).round(decimals=2)  # with equal entries
    there = sections_on_the_cpu(codec, codec.encode(gradient.cuda(), seeded()))
    for one, other in zip(there, codec.sections(codec.encode(gradient, seeded())), strict=True):
        assert one.equal(other)


@EITHER
@pytest.mark.parametrize("spec", ["topk(ratio=0.01)", "qsgd", "efsignsgd", "dgc(ratio=0.01)"])
def test_memory_does_not_grow_over_1000_steps(place, spec):
    codec, memory = make_codec(spec), make_memory("residual")
    gradient, out = normal((300, 1000)).to(place), torch.zeros(300, 1000, device=place)
    bytes_held = []
    for step in range(LONG if place == "cuda" else 2):
        payload = memory.encode(codec, gradient.clone(), {"w": gradient.shape}, seeded(step))
        codec.add_decoded(payload, out)
        del payload
        bytes_held.append(held(place))
    assert bytes_held[-1] <= bytes_held[len(bytes_held) // 100]


@pytest.fixture
def group(place: str, tmp_path: Path):
    """Returns a group of this process alone: NCCL takes one rank of a group on a GPU."""
    if place == "cuda":
        torch.cuda.set_device(0)
    backend = "nccl" if place == "cuda" else "gloo"
    dist.init_process_group(backend, f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped(model: nn.Module, place: str) -> DistributedDataParallel:
    """Returns a model in DDP."""
    return DistributedDataParallel(model, device_ids=[0] if place == "cuda" else None)


@EITHER
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "amp"])
@pytest.mark.parametrize("spec", ["topk(ratio=1.0)", "qsgd", "signsgd", "powersgd(rank=2)"])
def test_the_hook_averages(place, spec, scaled):
    """Over NCCL; with a scaler, which with AMP on a GPU has float16."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 10)).to(place)
    ddp, scaler = wrapped(model, place), torch.amp.GradScaler(place, enabled=scaled)
    state, hook = atomo.ddp_hook(ddp, spec, scaler=scaler if scaled else None)
    ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs, labels = normal((32, 40)).to(place), torch.arange(32, device=place) % 10
    losses = []
    for _ in range(30 if place == "cuda" else 3):
        optimizer.zero_grad()
        with torch.autocast(place, enabled=scaled):
            loss = nn.functional.cross_entropy(ddp(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@EITHER
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_hook_takes_no_more_memory_over_1000_steps(place, dtype):
    torch.manual_seed(1)
    ddp = wrapped(nn.Linear(200, 300).to(place, dtype), place)
    ddp.register_comm_hook(*atomo.ddp_hook(ddp, "topk(ratio=0.01)"))
    inputs, bytes_held = normal((8, 200)).to(place, dtype), []
    for _ in range(LONG if place == "cuda" else 3):
        ddp.zero_grad()
        ddp(inputs).square().mean().backward()
        bytes_held.append(held(place))
    assert bytes_held[-1] <= bytes_held[len(bytes_held) // 100]


@needs_a_gpu
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("code", ["topk(ratio=0.05)", "qsgd", "powersgd(rank=2)"])
def test_two_processes_on_one_gpu_keep_the_same_weights(tmp_path, code, dtype):
    """Over gloo: NCCL takes one rank of a group on a GPU."""
    one, other = run_ranks(RANKS, 2, tmp_path, "cpu:gloo,cuda:gloo", code, dtype)
    assert one == other


@pytest.mark.slow
def test_their_script_learns_on_a_cpu(tmp_path, capsys):
    """The script runs in this process, as the only rank."""
    cuda_ranks.main(0, 1, tmp_path, "gloo", "qsgd", torch.bfloat16)
    assert capsys.readouterr().out.strip()


@needs_a_gpu
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs for NCCL of two ranks")
@pytest.mark.parametrize("code", ["topk(ratio=0.05)", "qsgd", "powersgd(rank=2)"])
def test_two_processes_over_nccl_keep_the_same_weights(tmp_path, code):
    one, other = run_ranks(RANKS, 2, tmp_path, "nccl", code, "float32")
    assert one == other


def best(folder: Path) -> float:
    """Returns the best accuracy that an evaluator found."""
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    return max(float(json.loads(line)["top1"]) for line in lines)


@needs_a_gpu
@pytest.mark.slow
@pytest.mark.parametrize("code", ["svd", "topk(ratio=0.05)", "qsgd"])
def test_the_command_trains_to_the_cpus_accuracy(tmp_path, code):
    """Workers share the GPU; the digits need no download."""
    words = ["train", "--epochs=5", f"--code={code}"]
    found = []
    for gpu in ("yes", "no"):
        folder = tmp_path / gpu
        more = [f"--enable-gpu={gpu}", f"--train-dir={folder}"]
        done, output = run([*words, *more], tmp_path / f"{gpu}.log")
        assert done == 0, output
        found.append(best(folder))
    assert found[0] >= found[1] - 0.02


@needs_a_gpu
@pytest.mark.slow
@pytest.mark.skipif("ATOMO_DATA" not in os.environ, reason="ATOMO_DATA names no folder of CIFAR-10")
def test_resnet18_learns_cifar10_with_a_codec_as_without(tmp_path):
    found = []
    for code in ("topk(ratio=0.01)", "sgd"):
        folder = tmp_path / code[:4]
        words = ["train", "-n=2", "--network=ResNet18", "--dataset=Cifar10", "--epochs=5"]
        words += ["--batch-size=128", "--lr=0.05", "--weight-decay=5e-4", "--enable-gpu=yes"]
        words += [
            f"--code={code}",
            f"--train-dir={folder}",
            f"--data-dir={os.environ['ATOMO_DATA']}",
        ]
        done, output = run(words, tmp_path / f"{code[:4]}.log")
        assert done == 0, output
        found.append(best(folder))
    assert found[1] > 0.6
    assert found[0] >= found[1] - 0.03


@needs_a_gpu
@pytest.mark.slow
@pytest.mark.parametrize("code", ["topk(ratio=0.05)", "qsgd"])
def test_a_master_on_the_gpu_trains_as_one_on_the_cpu(tmp_path, code):
    found = []
    for place in ("gpu", "cpu"):
        folder = tmp_path / place
        words = ["train", "--epochs=5", f"--code={code}", "--enable-gpu=yes", "--down=weights"]
        done, output = run(
            [*words, f"--master-device={place}", f"--train-dir={folder}"],
            tmp_path / f"{place}.log",
        )
        assert done == 0, output
        found.append(best(folder))
    assert found[0] >= found[1] - 0.02


@needs_a_gpu
@pytest.mark.slow
def test_dense_sums_over_mpi_are_alike_from_gpu_to_gpu_and_by_way_of_hosts(tmp_path):
    if is_cuda_aware() is not True:
        pytest.skip("the MPI here does not say that it takes CUDA memory")
    found = []
    for aware in ("auto", "no"):
        folder = tmp_path / aware
        words = ["train", "-n=2", "--comm-type=Allreduce", "--code=sgd", "--max-steps=20"]
        words += ["--enable-gpu=yes", f"--cuda-aware-mpi={aware}", f"--train-dir={folder}"]
        done, output = run(words, tmp_path / f"{aware}.log")
        assert done == 0, output
        assert ("dense sums go from GPU to GPU" in output) == (aware == "auto")
        found.append(load(folder, 20).model)
    for name, one in found[0].items():
        torch.testing.assert_close(one, found[1][name])


@EITHER
@pytest.mark.usefixtures("group")
def test_what_is_sent_whole_is_the_gradient_itself(place):
    """A world of one that sends every entry trains as without the hook."""
    ends = []
    for hooked in (False, True):
        torch.manual_seed(1)
        ddp = wrapped(nn.Linear(40, 10).to(place), place)
        if hooked:
            ddp.register_comm_hook(*atomo.ddp_hook(ddp, "topk(ratio=1.0)", memory="none"))
        ddp(normal((32, 40)).to(place)).square().mean().backward()
        ends.append(ddp.module.weight.grad.clone())
    torch.testing.assert_close(*ends, rtol=0, atol=0)
