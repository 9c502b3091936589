"""Inputs of `atomo explain`: times of passes, a gradient, and the workers as described.

Passes are timed on this machine, or given by `--compute`. The gradient comes from a file, or from
a backward pass with random weights or with weights from a file.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atomo.cli.explanation.options import ExplainOptions
from atomo.cli.gradient_file import load_gradient, load_tensors
from atomo.core.process.allocator import keep_freed_memory
from atomo.core.randomness import derive
from atomo.errors import ConfigError
from atomo.planning import Profile, Scenario, measure_passes
from atomo.planning.prediction import NO_LINK
from atomo.planning.rails import measure_intra_host_link
from atomo.workloads import task_of
from atomo.workloads.datasets import epoch_seed
from atomo.workloads.models.pretrained.weights import load_weights

__all__ = ["profile_of", "scenario_of"]

BUFFERS: Final = ("running_mean", "running_var", "num_batches_tracked")  # of batch norms
FORWARD: Final = 1 / 3  # of both passes: backward multiplies twice as much, for weights and inputs


def profile_of(options: ExplainOptions) -> Profile:
    """Returns the passes of one worker, and its gradient.

    Raises:
        ConfigError: a name is unknown, or a file is of another network.
        DataError: the data set is missing, or a file is damaged.
    """
    said_s = options.compute_s
    if options.weights and said_s is not None:
        return passes_of_length(random_gradient(Path(options.weights)), said_s)
    if not options.gradient:
        return scale_passes(time_passes(options), said_s)
    gradient = load_gradient(Path(options.gradient), "--gradient")
    if said_s is not None:
        return passes_of_length(gradient, said_s)
    profile = time_passes(options)
    return replace(profile, gradient=match_parameters(gradient, profile, options))


def time_passes(options: ExplainOptions) -> Profile:
    """Times the passes on this machine, and returns them with their gradient."""
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the ranks of a job do
    work = task_of(options.dataset).open(
        options.dataset, Path(options.data_dir), options.image_size or None
    )
    torch.manual_seed(derive(1, "weights"))
    model = work.build(options.network).train()
    if options.weights:
        load_file_weights(model, options)
    chosen = torch.arange(options.batch_size) % len(work.train)
    batch = work.train.batch(chosen, epoch_seed(1, 0))
    return measure_passes(model, work.objective, batch, options.repetitions)


def load_file_weights(model: Module, options: ExplainOptions) -> None:
    """Loads the file's weights into the network. Raises ConfigError or DataError if they do not
    fit or cannot be read.
    """
    try:
        load_weights(model, Path(options.weights))
    except ConfigError as error:
        raise ConfigError(
            f"{error}; --network is {options.network} on --dataset {options.dataset}: give the "
            "network and data set of the file, or --compute with the time of their passes"
        ) from error


def scale_passes(profile: Profile, said_s: float | None) -> Profile:
    """Scales the times of the passes to the given total; None: no change."""
    if said_s is None:
        return profile
    factor = said_s / (profile.forward_s + profile.backward_s)
    return replace(
        profile,
        forward_s=factor * profile.forward_s,
        ready_s=tuple(factor * moment for moment in profile.ready_s),
        backward_s=factor * profile.backward_s,
    )


def passes_of_length(gradient: dict[str, Tensor], said_s: float) -> Profile:
    """Returns passes of a given total time; gradients become ready at equal intervals."""
    backward_s, tensors = (1 - FORWARD) * said_s, len(gradient)
    ready = tuple(backward_s * (number + 1) / tensors for number in range(tensors))
    return Profile(FORWARD * said_s, ready, backward_s, gradient)


def random_gradient(path: Path) -> dict[str, Tensor]:
    """Draws normal numbers in the shapes of a file's parameters: only their number matters.

    Raises:
        ConfigError: the file has no parameters.
        DataError: the file cannot be read.
    """
    generator = Generator().manual_seed(1)
    gradient = {
        name: torch.randn(tensor.shape, generator=generator)
        for name, tensor in load_tensors(path, "--weights").items()
        if tensor.is_floating_point() and tensor.numel() and not name.endswith(BUFFERS)
    }
    if not gradient:
        raise ConfigError(f"--weights {path}: there is no parameter in it")
    return gradient


def match_parameters(
    gradient: Mapping[str, Tensor], profile: Profile, options: ExplainOptions
) -> dict[str, Tensor]:
    """Returns the gradient in the order of the network's parameters.

    Raises:
        ConfigError: the gradient belongs to another network.
    """
    own = {name: tuple(tensor.shape) for name, tensor in profile.gradient.items()}
    read = {name: tuple(tensor.shape) for name, tensor in gradient.items()}
    odd = sorted(name for name in own.keys() | read.keys() if own.get(name) != read.get(name))
    if odd:
        file_shape, network_shape = read.get(odd[0], "missing"), own.get(odd[0], "none such")
        raise ConfigError(
            f"--gradient {options.gradient} is not one of --network {options.network} on "
            f"{options.dataset}: {odd[0]} is {file_shape} in the file and {network_shape} in the "
            "network; give the network and data set of the gradient, or --compute with the time of "
            "their passes"
        )
    return {name: gradient[name] for name in own}


def scenario_of(options: ExplainOptions, profile: Profile) -> Scenario:
    """Returns the workers and links that the options describe."""
    inside = measure_intra_host_link() if options.per_host > 1 else NO_LINK
    return Scenario(
        profile, options.workers, options.link, options.host_model,
        per_host=options.per_host, inside=inside,
    )  # fmt: skip
