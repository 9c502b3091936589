"""What an exchange costs among the ranks of a job, measured before its first step; nothing is
changed by it.

probe.py      what a rank has measured, and what all of them agree on
link.py       seconds of a message, and of a byte, from few and many bytes
rounds.py     both, by the reduction that ranks without a master will use
uplink.py     both, from workers to their master
beside.py     what encoding and the backward pass cost each other
untouched.py  everything that a pass might change, put back
"""

from atomo.probing.beside import Beside, measure_beside
from atomo.probing.link import Line
from atomo.probing.probe import Probe, agreed, agreed_flow
from atomo.probing.rounds import measure_rounds
from atomo.probing.untouched import untouched
from atomo.probing.uplink import answer_uplink, measure_uplink

__all__ = [
    "Beside",
    "Line",
    "Probe",
    "agreed",
    "agreed_flow",
    "answer_uplink",
    "measure_beside",
    "measure_rounds",
    "measure_uplink",
    "untouched",
]
