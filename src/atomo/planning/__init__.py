"""Prediction of a step's time from costs measured here and links as described.

profile.py     when the gradients of a model are there, on this machine
costs.py       what encoding, sending and decoding each of them takes
exchanges.py   how often each message crosses a link, and who decodes how many, by communicator
prediction.py  a step from these three, and whether compression pays
"""

from atomo.planning.costs import Costs, measure_costs
from atomo.planning.exchanges import EXCHANGES, Link
from atomo.planning.prediction import (
    HostModel,
    Prediction,
    Scenario,
    best_step,
    break_even,
    predict,
)
from atomo.planning.step_profile import Profile, measure_passes

__all__ = [
    "EXCHANGES",
    "Costs",
    "HostModel",
    "Link",
    "Prediction",
    "Profile",
    "Scenario",
    "best_step",
    "break_even",
    "measure_costs",
    "measure_passes",
    "predict",
]
