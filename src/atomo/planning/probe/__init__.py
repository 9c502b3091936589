"""A probe of a job: all its ranks measure the parts of a step at the same time, on their own hosts
and links. A probe changes nothing.

timer.py            measurements that all ranks begin together, and their shared numbers
pass_profile.py     times of the gradients while all ranks compute
slowing.py          delay of the passes by encoding beside them
codec_costs.py      costs of codecs while all ranks encode and decode
links.py            time of a message as each communicator sends it
probe_file.py       all of these, and their file
preserved_state.py  restores all state that a pass may change
"""

from atomo.planning.probe.codec_costs import measure_rank_costs
from atomo.planning.probe.links import LINKS, links_for, measure_links
from atomo.planning.probe.pass_profile import DryRun, measure_profile
from atomo.planning.probe.preserved_state import preserved_state
from atomo.planning.probe.probe_file import Probe, ProbeSubject, read_probe, write_probe
from atomo.planning.probe.slowing import measure_slowing
from atomo.planning.probe.timer import SynchronizedTimer

__all__ = [
    "LINKS",
    "DryRun",
    "Probe",
    "ProbeSubject",
    "SynchronizedTimer",
    "links_for",
    "measure_links",
    "measure_profile",
    "measure_rank_costs",
    "measure_slowing",
    "preserved_state",
    "read_probe",
    "write_probe",
]
