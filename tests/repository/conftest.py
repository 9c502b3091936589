"""Modules of benchmarks/ in tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts benchmarks/ first on the path, as its commands have it, and forgets what is imported."""
    before = {*sys.modules}
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in {*sys.modules} - before:
        module = sys.modules[name]
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
        if any(BENCHMARKS in Path(place).parents for place in places if place):
            del sys.modules[name]
