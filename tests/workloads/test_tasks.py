"""Tasks by name, and the properties that follow from a name."""

import math

import pytest

from atomo.config.identity import UNSAID, check_identity, record
from atomo.config.settings import Settings
from atomo.core.arguments import parse_arguments
from atomo.errors import ConfigError
from atomo.launch.resolve import canonical_settings
from atomo.workloads import TASKS, Metric, choose_workload, make_task, spec_of


def read(*words: str) -> Settings:
    return canonical_settings(parse_arguments(Settings, words, "train", "", choose_workload))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_networks_data_sets_and_metrics_of_its_own(name):
    task = make_task(name.upper())
    assert spec_of(task) == name
    assert task.network_named(task.network) == task.network
    assert task.dataset in task.datasets()
    assert task.metrics[0].title
    settings = read(f"--task={name}")
    assert (settings.task, settings.network, settings.dataset) == (name, task.network, task.dataset)


@pytest.mark.parametrize("name", TASKS)
def test_a_data_set_says_what_is_trained(name):
    for dataset in TASKS[name].datasets():
        first = next(task for task, kind in TASKS.items() if dataset in kind.datasets())
        assert read(f"--dataset={dataset.lower()}").task == first
        assert read(f"--task={name}", f"--dataset={dataset.lower()}").task == name


@pytest.mark.parametrize("higher", [True, False])
def test_a_metric_says_which_way_is_better(higher):
    metric = Metric("m", "m", higher_is_better=higher)
    assert metric.better(0.9, 0.1) == higher
    assert metric.better(0.1, 0.9) != higher
    assert not metric.better(0.5, 0.5)
    assert metric.better(0.5, math.nan)  # or the first evaluation, diverged, would stay the best
    assert not metric.better(math.nan, 0.5)
    assert not metric.better(math.nan, math.nan)


def test_nothing_given_is_what_it_always_was():
    assert read() == canonical_settings(Settings())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task=image"], "unknown task 'image'; did you mean 'images'"),
        (["--task=images(size=3)"], "images: unknown setting 'size'"),
        (["--task=images", "--dataset=Digit"], "unknown data set 'Digit'; did you mean 'Digits'"),
    ],
)
def test_what_there_is_not(words, message):
    with pytest.raises(ConfigError) as caught:
        read(*words)
    assert message in str(caught.value)


def test_checkpoints_from_before_there_were_tasks_are_of_images(tmp_path):
    settings = read()
    recorded = {name: value for name, value in record(settings).items() if name not in UNSAID}
    check_identity(settings, recorded | {"image_size": None}, tmp_path)
