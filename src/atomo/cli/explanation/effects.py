"""The table of `atomo explain`: for each option, the condition under which it has an effect."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from atomo.cli.explanation.options import ExplainOptions
from atomo.cli.explanation.run import with_enclosing_run
from atomo.config.effect_tables import ALWAYS, Effect

__all__ = ["EXPLAIN_EFFECTS", "OF_RUN"]

READ: Final = (
    "workers", "hierarchical", "bandwidth", "latency", "code", "svd_rank", "threads",
    "processes_per_host", "cores", "repetitions", "weights", "gradient", "compute", "probe",
    "json", "png", "html", "local_steps",
)  # fmt: skip
PASSES: Final[Effect[ExplainOptions]] = Effect(
    lambda o: not (o.compute and (o.weights or o.gradient)) and with_enclosing_run(o) is o,
    "the file of a run is of the run's model, and with --compute no pass is measured; leave it out",
)
PROBE: Final[Effect[ExplainOptions]] = Effect(
    lambda o: bool(o.probe),
    "a job on hosts is started by --probe FILE alone; give that, or leave it out",
    refused=True,
)
EXPLAIN_EFFECTS: Final[Mapping[str, Effect[ExplainOptions]]] = MappingProxyType(
    dict.fromkeys(READ, ALWAYS)
    | dict.fromkeys(("network", "dataset", "data_dir", "image_size", "batch_size"), PASSES)
    | dict.fromkeys(("hostfile", "mpi_args"), PROBE)
)

RUN: Final[Effect[ExplainOptions]] = Effect(
    lambda o: False, "the run says it; leave it out, or explain a network instead of a run"
)
OF_RUN: Final[Mapping[str, Effect[ExplainOptions]]] = MappingProxyType(
    dict.fromkeys(
        ("bandwidth", "latency", "cores", "processes_per_host", "repetitions", "json",
         "hierarchical", "threads", "network"),  # the last three where the run does not say
        ALWAYS,
    )
    | dict.fromkeys(
        ("dataset", "data_dir", "image_size", "batch_size", "workers", "code", "svd_rank",
         "weights", "gradient", "compute", "probe", "hostfile", "mpi_args", "png", "html",
         "local_steps"),
        RUN,
    )
)  # fmt: skip
"""Effects of the options when a run's folder is explained."""
