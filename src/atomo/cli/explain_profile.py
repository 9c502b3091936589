"""What `atomo explain` predicts from: passes measured on this machine, and workers as described."""

from pathlib import Path

import torch

from atomo.allocator import keep_freed_memory
from atomo.cli.explain_options import ExplainOptions
from atomo.data import epoch_seed
from atomo.planning import Profile, Setting, measure_passes
from atomo.planning.hosts import measure_inside
from atomo.planning.prediction import NO_LINK
from atomo.randomness import derive
from atomo.tasks import task_of

__all__ = ["profile_of", "setting_of"]


def profile_of(options: ExplainOptions) -> Profile:
    """The passes of one worker, on this machine.

    Raises:
        ConfigError: a name is unknown.
        DataError: the data set is missing.
    """
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the ranks of a job do
    work = task_of(options.dataset).open(
        options.dataset, Path(options.data_dir), options.image_size or None
    )
    torch.manual_seed(derive(1, "weights"))
    model = work.build(options.network).train()
    chosen = torch.arange(options.batch_size) % len(work.train)
    batch = work.train.batch(chosen, epoch_seed(1, 0))
    return measure_passes(model, work.objective, batch, options.repetitions)


def setting_of(options: ExplainOptions, profile: Profile) -> Setting:
    """Workers and links as described."""
    inside = measure_inside() if options.per_host > 1 else NO_LINK
    return Setting(
        profile, options.workers, options.link, options.machine,
        per_host=options.per_host, inside=inside,
    )  # fmt: skip
