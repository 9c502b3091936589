"""A master on a GPU: on a device that is pretended it trains as on the CPU, workers aside."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.fake_device import DEVICE, Device, use_staging, waits
from support.harness import settings, together

from atomo.errors import ConfigError
from atomo.training.checkpoints.checkpoint import Snapshot, load
from atomo.training.job.job import make_job
from atomo.training.rank import device_of, make_end
from atomo.transports import LocalTransport, network

CPU = torch.device("cpu")


def trained(folder: Path, device: torch.device, steps: int, **changes: object) -> Snapshot:
    """Returns the last checkpoint of a run whose master is on a device, and whose
    workers are not.
    """
    options = {"down": "weights", "momentum": 0.9, "memory": "residual", "ema_decay": 0.9}
    chosen = settings(folder, max_steps=steps, n=3, **(options | changes))
    transports = network(chosen.n)

    def body(transport: LocalTransport) -> Callable[[], None]:
        job = make_job(chosen, chosen.n)  # in this thread: its weights are drawn from a seed of all

        def run() -> None:
            with Device():
                place = CPU if transport.rank else device
                make_end(job, transport, place, lambda event: None, lambda: False).run()

        return run

    together([body(transport) for transport in transports], lambda: transports[0].abort(1))
    return load(folder, steps)


@pytest.mark.slow
def test_it_takes_the_steps_that_one_on_the_cpu_takes(tmp_path, monkeypatch):
    """A checkpoint of a master on a device is resumed there, with momentum, and with
    the average.
    """
    use_staging(monkeypatch)
    changes = {"code": "topk(ratio=0.05)", "clip_grad": 5.0}
    trained(tmp_path / "there", DEVICE, 1, **changes)
    snapshot = trained(tmp_path / "there", DEVICE, 2, **changes)
    expected = trained(tmp_path / "here", CPU, 2, **changes)
    for part in ("model", "optimizer"):
        torch.testing.assert_close(getattr(snapshot, part), getattr(expected, part))


def test_its_weights_come_to_the_host_once_a_step(tmp_path, monkeypatch):
    use_staging(monkeypatch)
    with waits() as calls:
        trained(tmp_path, DEVICE, 2, code="sgd", memory="none", ema_decay=0.0)
    # The weights of each step; those of the checkpoint, and its optimizer.
    assert calls.count("synchronize") == 2 + 1
    assert calls.count("copy_") == 1


def test_who_is_where(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    ranks = network(3)
    here = settings(Path("x"), n=3, enable_gpu="yes")
    there = settings(Path("x"), n=3, enable_gpu="yes", master_device="GPU")
    assert [str(device_of(here, rank)) for rank in ranks] == ["cpu", "cuda:1", "cuda:0"]
    assert str(device_of(there, ranks[0])) == "cuda:0"


@pytest.mark.parametrize(
    ("given", "down"),
    [("auto", "weights"), ("weights", "weights"), ("weights(bf16)", "weights(bf16)")],
)
def test_on_a_gpu_it_sends_weights(given, down):
    there = settings(Path("x"), enable_gpu="yes", master_device="gpu", down=given)
    assert there.down == down


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"down": "updates"}, "--down updates: workers would repeat steps on their CPUs"),
        ({"down": "delta(topk)"}, "--down delta"),
        ({"enable_gpu": "no"}, "--master-device gpu needs --enable-gpu yes"),
        ({"comm_type": "Allgather"}, "needs a master, which --comm-type ParameterServer has"),
        ({"master_device": "abacus"}, "abacus"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        settings(Path("x"), **({"enable_gpu": "yes", "master_device": "gpu"} | changes))
