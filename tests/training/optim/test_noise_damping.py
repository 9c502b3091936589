"""Steps are as long as the noise of an unbiased codec allows, and a resume remembers the noise."""

import math

import pytest
import torch
from support.harness import run_threads, settings
from support.networks import SMALL

from atomo.codecs import CODECS, make_codec
from atomo.errors import CheckpointError
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.events import Event, StepDone
from atomo.training.job.job import make_job
from atomo.training.optim.noise_damping import Damping


def test_the_factor_is_one_over_one_plus_the_noise():
    """With omega = 3 over 2 workers, E|estimate|^2 = (1 + 3 / 2) |gradient|^2."""
    damping = Damping()
    assert damping.factor(1.0, 2.5) == pytest.approx(1 / (1 + 3 / 2))


def test_it_is_steady_and_forgets_slowly():
    damping = Damping()
    factors = [damping.factor(1.0, 1.0 + 9.0 * (step % 10 == 0)) for step in range(200)]
    assert 0.3 < min(factors[100:]) < max(factors[100:]) < 0.8


@pytest.mark.parametrize(
    ("gradient", "estimate"), [(1.0, 1.0), (2.0, 1.0), (0.0, 0.0), (math.inf, math.inf)]
)
def test_what_came_out_no_longer_takes_whole_steps(gradient, estimate):
    assert Damping().factor(gradient, estimate) == 1.0


def test_a_checkpoint_has_all_it_knows():
    saved, restored = Damping(), Damping()
    saved.factor(0.3, 0.7)
    restored.load_state_dict(saved.state_dict() | {"momentum_buffer/w": torch.zeros(3)})
    assert [saved.factor(0.1, 0.9)] * 2 == [restored.factor(0.1, 0.9), saved.factor(0.1, 0.9)][
        :1
    ] * 2
    assert Damping().state_dict() == {}
    Damping().load_state_dict({})  # a checkpoint from before there was damping
    with pytest.raises(CheckpointError, match="must be two numbers"):
        restored.load_state_dict({"noise_damping": torch.zeros(3)})


def run(tmp_path, **changes) -> list[StepDone]:
    events: list[Event] = []
    run_threads(settings(tmp_path, network=SMALL, **changes), events.append)
    return [event for event in events if isinstance(event, StepDone)]


@pytest.mark.slow
def test_fewer_workers_and_fewer_atoms_take_shorter_steps(tmp_path):
    def last(name: str, **changes: object) -> float:
        return run(tmp_path / name, code="randk(ratio=0.1)", max_steps=12, **changes)[-1].damping

    assert last("randk") == pytest.approx(0.1, rel=0.5)  # n / k = 1 + omega
    assert run(tmp_path / "few", code="qsgd(bits=1)", n=2, max_steps=12)[-1].damping < (
        run(tmp_path / "many", code="qsgd(bits=1)", n=5, max_steps=12)[-1].damping
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"code": "sgd"},
        {"code": "topk"},
        {"code": "signsgd"},
        {"code": "svd", "optimizer": "adam", "lr": 0.001},
        {"code": "svd", "noise_damping": False},
    ],
    ids=str,
)
def test_what_has_no_such_noise_is_left_alone(changes, tmp_path):
    assert {step.damping for step in run(tmp_path, max_steps=3, **changes)} == {1.0}


@pytest.mark.slow
def test_a_checkpoint_of_a_run_has_it(tmp_path):
    run(tmp_path, code="randk", max_steps=3)
    assert load(tmp_path, 3).optimizer["noise_damping"].dtype == torch.float64


@pytest.mark.slow
@pytest.mark.parametrize("code", CODECS)
def test_a_codec_is_noisy_where_it_is_unbiased_and_not_lossless(code, tmp_path):
    """Measured: decoded gradients of noisy codecs are longer on average, those of
    others are not.
    """
    codec = make_codec(code)
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(40, 30, generator=generator)
    out = [codec.decode(codec.encode(gradient, generator), gradient.shape) for _ in range(20)]
    longer = (
        sum(float(decoded.norm()) ** 2 for decoded in out) / 20
        > 1.001 * float(gradient.norm()) ** 2
    )
    assert longer == codec.amplifies_noise or codec.votes
    job = make_job(settings(tmp_path, code=code, network=SMALL), 3)
    assert job.damps_at(1) == codec.amplifies_noise
