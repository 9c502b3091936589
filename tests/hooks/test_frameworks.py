"""Other people's training loops, in jobs of two processes over gloo."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from hooks.ranks import run_ranks

SCRIPT = Path(__file__).with_name("frameworks.py")


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    why = f"needs {package}: `.venv/bin/pip install -e '.[{extra}]'` has it"
    return pytest.mark.skipif(find_spec(package) is None, reason=why)


@pytest.mark.long
@pytest.mark.slow
@needs("accelerate", "accelerate")
@needs("transformers", "text")
def test_accelerate_and_the_trainer_go_on_as_if_they_had_never_stopped(tmp_path):
    run_ranks(SCRIPT, 2, tmp_path, "accelerate", "trainer")


@pytest.mark.slow
@needs("lightning", "lightning")
def test_lightning_goes_on_as_if_it_had_never_stopped(tmp_path):
    run_ranks(SCRIPT, 2, tmp_path, "lightning")
