"""What an exchange costs among the ranks of a job, measured before its first step; nothing is
changed by it.

together.py   what all ranks time at once, and agree on
links.py      what a message takes as each communicator sends it
probe.py      what a rank has measured, and what all of them agree on
beside.py     what encoding and the backward pass cost each other
untouched.py  everything that a pass might change, put back
"""

from atomo.probing.beside import Beside, measure_beside
from atomo.probing.links import LINKS, measure_links
from atomo.probing.probe import Line, Probe, agreed, agreed_flow
from atomo.probing.together import Together
from atomo.probing.untouched import untouched

__all__ = [
    "LINKS",
    "Beside",
    "Line",
    "Probe",
    "Together",
    "agreed",
    "agreed_flow",
    "measure_beside",
    "measure_links",
    "untouched",
]
