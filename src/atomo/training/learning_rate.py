"""The learning rate of each step, which the optimiser and some memories follow."""

from atomo.config import Settings

__all__ = ["learning_rate"]


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of `step`, which counts from 1."""
    return settings.lr * settings.lr_shrinkage ** ((step - 1) // settings.lr_shrink_freq)
