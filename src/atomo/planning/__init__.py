"""Prediction of a step's time from costs measured here and links as described.

step_profile.py  times at which the gradients of a model are complete, on this machine
costs.py         times to encode and decode each gradient, and its bytes
exchanges.py     crossings of a link and messages to decode, by communicator
prediction.py    the predicted time of a step
comparison.py    predictions of all codecs and communicators; does compression pay?
assignment.py    a codec for each tensor, within an error budget
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
