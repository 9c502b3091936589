"""Dense gradients: a master and N workers equal one process on the joined batch."""

import pytest
from support.harness import largest_difference, plain_sgd, run_threads, settings
from support.selection import slow_but

from atomo.training.checkpoints.checkpoint import load


@pytest.mark.parametrize("workers", slow_but([3], [1, 2, 3]))
def test_dense_equals_plain_sgd(workers, tmp_path):
    chosen = settings(tmp_path, n=workers + 1, code="sgd", batch_size=24 // workers, max_steps=8)
    run_threads(chosen)
    assert largest_difference(plain_sgd(chosen), load(tmp_path, 8).model) < 1e-5


def test_every_option_of_the_optimizer_reaches_it(tmp_path):
    chosen = settings(
        tmp_path,
        code="sgd",
        nesterov=True,
        weight_decay=0.01,
        lr_shrinkage=0.5,
        lr_shrink_freq=3,
        fusion_mb=0.1,
        batch_size=12,
        max_steps=8,
    )
    run_threads(chosen)
    assert largest_difference(plain_sgd(chosen), load(tmp_path, 8).model) < 1e-5
