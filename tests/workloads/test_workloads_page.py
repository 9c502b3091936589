"""The page on workloads has every task, and every setting of one with its default."""

import re
from pathlib import Path

import pytest

from atomo.workloads import TASKS, make_task, settings_of

PAGE = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text()
TOLD = [name for name in TASKS if f"| setting of `{name}` |" in PAGE]


def rows(head: str) -> list[list[str]]:
    """Returns the cells of the table whose first column is called so."""
    lines = PAGE[PAGE.index(f"\n| {head} |") + 1 :].splitlines()
    end = next(n for n, line in enumerate(lines) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:end]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_all_tasks_are_there_with_their_networks_and_data_sets():
    tasks = {quoted(row[0])[0]: row for row in rows("task")}
    assert set(tasks) == set(TASKS)
    for name, (_, datasets, networks, _) in tasks.items():
        task = make_task(name)
        assert set(quoted(datasets)) <= set(task.datasets())
        assert "..." in datasets or set(quoted(datasets)) == set(task.datasets())
        assert quoted(networks)[0] == task.network


@pytest.mark.parametrize("name", TASKS)
def test_all_settings_of_a_task_are_there_with_their_defaults(name):
    own = {setting.name: str(setting.default) for setting in settings_of(make_task(name))}
    if name not in TOLD:  # a sentence does for one setting
        assert len(own) == 1
        return
    listed: dict[str, str] = {}
    for names, defaults, _ in rows(f"setting of `{name}`"):
        values = [value.strip("`") for value in defaults.split(", ")]
        setting_names = quoted(names)
        listed |= dict(
            zip(
                setting_names,
                len(setting_names) * values if len(values) == 1 else values,
                strict=True,
            )
        )
    assert listed == own
