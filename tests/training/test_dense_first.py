"""`--dense-below` and `--dense-steps`: what travels as it is, and when."""

from dataclasses import replace

import pytest
from support.harness import settings
from support.networks import SMALL

from atomo.codecs.dense_fallback import DENSE
from atomo.config.identity import check_identity, record
from atomo.errors import ConfigError
from atomo.training.job.job import Job, make_job

SHORT = {"network": SMALL, "n": 2, "comm_type": "Allgather", "code": "topk(ratio=0.1)"}


def coded(job: Job, step: int) -> set[str]:
    """Returns the parameters that do not travel as they are."""
    parts = [part for bucket in job.buckets_at(step) for part in bucket.parts]
    return {slot.name for part in parts if part.codec != DENSE for slot in part.slots}


@pytest.mark.slow
def test_small_parameters_travel_dense_whatever_the_codec(tmp_path) -> None:
    matrices = {"fc1.weight", "fc2.weight", "fc3.weight"}
    assert coded(make_job(settings(tmp_path, **SHORT), 2), 1) == matrices
    below = settings(tmp_path, **SHORT, dense_below=4000, code_for="qsgd: fc*")
    assert coded(make_job(below, 2), 1) == matrices  # the least, fc3, has 400 x 10 entries
    assert coded(make_job(replace(below, dense_below=4001), 2), 1) == matrices - {"fc3.weight"}


def test_first_steps_are_dense_and_the_schedule_goes_on_behind_them(tmp_path) -> None:
    plan = {"code_schedule": "1: qsgd", "memory": "none", "batch_size": 256, "dense_steps": 2}
    job = make_job(settings(tmp_path, **{**SHORT, "code": "svd"}, **plan), 2)
    assert job.steps_per_epoch == 2
    assert [bool(coded(job, step)) for step in (1, 2, 3)] == [False, False, True]
    assert {p.codec.id for b in job.buckets_at(3) for p in b.parts} == {"qsgd", "sgd"}
    layouts = [[(b.offset, b.size) for b in job.buckets_at(step)] for step in (1, 3)]
    assert layouts[0] == layouts[1]


@pytest.mark.parametrize("changed", [{"dense_below": 100}, {"dense_steps": 3}], ids=str)
def test_a_run_goes_on_with_the_same(changed, tmp_path) -> None:
    before = settings(tmp_path, **SHORT)
    earlier = {k: v for k, v in record(before).items() if not k.startswith("dense_")}
    check_identity(before, earlier, tmp_path)  # a checkpoint from before there were these
    with pytest.raises(ConfigError, match=f"--dense-{next(iter(changed))[6:]} .*before: 0"):
        check_identity(replace(before, **changed), record(before), tmp_path)
