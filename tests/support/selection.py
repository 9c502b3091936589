"""The selection of a test's cases: by default, with --all, and with --long alone."""

from collections.abc import Collection, Iterable

import pytest


def slow_but(kept: Collection[object], cases: Iterable[object]) -> list[object]:
    """Returns all cases; those that are not `kept` are slow."""
    return marked_but(kept, cases, pytest.mark.slow)


def long_but(kept: Collection[object], cases: Iterable[object]) -> list[object]:
    """Returns all cases; those that are not `kept` are long."""
    return marked_but(kept, cases, pytest.mark.long)


def marked_but(
    kept: Collection[object], cases: Iterable[object], mark: pytest.MarkDecorator
) -> list[object]:
    """Returns all cases; those that are not `kept` have a mark."""
    return [case if case in kept else pytest.param(case, marks=mark) for case in cases]
