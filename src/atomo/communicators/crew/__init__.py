"""Ranks without a master that go on without those of them who die."""

from atomo.communicators.crew.crew import Crew
from atomo.communicators.crew.surviving import Surviving

__all__ = ["Crew", "Surviving"]
