"""Which cases of a test run by default, and which with --all alone."""

from collections.abc import Collection, Iterable

import pytest


def slow_but(kept: Collection[object], cases: Iterable[object]) -> list[object]:
    """All cases; those that are not `kept` are slow."""
    return [case if case in kept else pytest.param(case, marks=pytest.mark.slow) for case in cases]
