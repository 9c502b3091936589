"""What is trained, by name, and what follows from a name."""

import pytest

from atomo.arguments import parse
from atomo.config import UNSAID, Settings, check_identity, record
from atomo.errors import ConfigError
from atomo.launch.place import canonical
from atomo.tasks import TASKS, chosen, make_task, spec_of


def read(*words: str) -> Settings:
    return canonical(parse(Settings, words, "train", "", chosen))


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
        assert read(f"--dataset={dataset.lower()}").task == name


def test_nothing_given_is_what_it_always_was():
    assert read() == canonical(Settings())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--task=image"], "unknown task 'image'; did you mean 'images'"),
        (["--task=images(size=3)"], "images: unknown setting 'size'"),
        (["--task=images", "--dataset=Digit"], "unknown data set 'Digit'; did you mean 'Digits'"),
    ],
)
def test_what_there_is_not(words, told):
    with pytest.raises(ConfigError) as caught:
        read(*words)
    assert told in str(caught.value)


def test_checkpoints_from_before_there_were_tasks_are_of_images(tmp_path):
    settings = read()
    kept = {name: value for name, value in record(settings).items() if name not in UNSAID}
    check_identity(settings, kept | {"image_size": None}, tmp_path)
