"""A probe: what steps are made of, measured in a job on its own hosts and links.

together.py  what all ranks time at once, and agree on
passes.py    when gradients are there while all ranks compute
coding.py    what codecs cost on all ranks at once
encoder.py   something to encode beside the passes
links.py     what a message takes as each communicator sends it
job.py       all of these
record.py    the file that keeps them
"""

from atomo.profiling.coding import measure_together
from atomo.profiling.job import probe
from atomo.profiling.links import measure_links
from atomo.profiling.passes import measure_job, measure_slowing
from atomo.profiling.record import Probed, Subject, read_probe, write_probe
from atomo.profiling.together import Together

__all__ = [
    "Probed",
    "Subject",
    "Together",
    "measure_job",
    "measure_links",
    "measure_slowing",
    "measure_together",
    "probe",
    "read_probe",
    "write_probe",
]
