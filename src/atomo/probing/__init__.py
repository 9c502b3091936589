"""A probe: what the steps of a job are made of, measured by all its ranks at once on its own hosts
and links. Nothing is changed by it.

together.py   what all ranks time at once, and agree on
passes.py     when gradients are there while all ranks compute
slowing.py    how much encoding delays the passes that it runs beside
coding.py     what codecs cost on all ranks at once
links.py      what a message takes as each communicator sends it
record.py     all of these, and the file that keeps them
untouched.py  everything that a pass might change, put back
"""

from atomo.probing.coding import measure_together
from atomo.probing.links import LINKS, links_for, measure_links
from atomo.probing.passes import Trial, measure_profile
from atomo.probing.record import Probed, Subject, read_probe, write_probe
from atomo.probing.slowing import measure_slowing
from atomo.probing.together import Together
from atomo.probing.untouched import untouched

__all__ = [
    "LINKS",
    "Probed",
    "Subject",
    "Together",
    "Trial",
    "links_for",
    "measure_links",
    "measure_profile",
    "measure_slowing",
    "measure_together",
    "read_probe",
    "untouched",
    "write_probe",
]
