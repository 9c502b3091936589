"""Pages of several runs: what came first, what differs, and sweeps."""

import json
from dataclasses import replace

import pytest
from support.run_folders import parse_page, write_run

from atomo.cli import main
from atomo.config.settings import Settings
from atomo.report.comparison_page import comparison_html, runs_of_sweep
from atomo.report.sweep_grid import point_of


@pytest.fixture
def runs(tmp_path):
    """A run with compression, and a run without that takes three times as long."""
    fast = write_run(tmp_path / "fast", settings=Settings(code="topk"))
    dense = write_run(
        tmp_path / "dense", settings=Settings(code="sgd"), up_bytes=50_000, step_s=0.33
    )
    return [dense, fast]


def rows_of(html):
    """Returns the table of costs, a list for each row."""
    body = html.partition("the soonest first</caption>")[2].partition("</table>")[0]
    rows = [row.partition("</tr>")[0] for row in body.split("<tr>")[2:]]
    return [parse_page_cells(row) for row in rows]


def parse_page_cells(row):
    return [cell.partition("<")[0] for cell in row.replace("<td>", '<th scope="row">')
            .split('<th scope="row">')[1:]]  # fmt: skip


def test_runs_are_sorted_by_the_seconds_to_a_target(runs):
    html = comparison_html(runs, 60.0)
    text = parse_page(html).text
    assert [row[0] for row in rows_of(html)] == ["fast", "dense"]
    assert rows_of(html)[0][1:4] == ["0:01", "10", "10.0 kB"]
    assert "fast reached accuracy 60.00% first, after 0:01 of training. measured" in text
    assert "Compression paid: 3 times sooner to accuracy 60.00% than dense" in text


def test_a_target_that_no_run_reaches_is_said(runs):
    html = comparison_html(runs, 99.0)
    assert "No run has an evaluated checkpoint that reaches the target" in parse_page(html).text
    assert [row[1] for row in rows_of(html)] == ["never", "never"]


def test_without_a_target_all_runs_reach_it(runs):
    assert all(row[1] != "never" for row in rows_of(comparison_html(runs)))


def test_a_dense_run_that_is_first_did_without_compression(tmp_path, runs):
    slow = write_run(tmp_path / "slow", step_s=9.0)
    assert "compression did not pay here" in comparison_html([slow, runs[0]], 60.0)


def test_only_settings_that_differ_are_listed(runs):
    text = parse_page(comparison_html(runs)).text
    part = text.partition("Settings that differ Settings that differ")[2]
    assert "run code memory" in part  # the memory follows the codec
    assert "network" not in part
    assert "seed" not in part


@pytest.mark.slow
def test_fifty_runs_are_told_apart_on_a_small_page(tmp_path):
    runs = [
        write_run(tmp_path / f"run{seed}", steps=300, settings=Settings(seed=seed))
        for seed in range(50)
    ]
    html = comparison_html(runs)
    page = parse_page(html)
    assert len(html) < 700_000
    assert all(f"run{seed}" in page.text for seed in range(50))


@pytest.mark.parametrize("count", [1, 51])
def test_too_few_and_too_many_runs_are_refused(tmp_path, count, capsys):
    run = write_run(tmp_path / "x", steps=2)
    words = ["report", *[str(run)] * count, "--target=50"]
    assert main(words) == 2
    assert ("2 to 50" in capsys.readouterr().err) == (count == 51)


def test_empty_and_damaged_runs_are_compared_too(tmp_path, runs):
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "metrics.jsonl").write_text('{"step": 1}\nhalf a li')
    text = parse_page(comparison_html([*runs, tmp_path / "empty", tmp_path / "odd"])).text
    assert "odd: metrics.jsonl: 1 lines are no steps" in text


@pytest.fixture
def sweep(tmp_path):
    folder, names = tmp_path / "sweep", []
    for lr in (0.01, 0.1):
        for code in ("topk", "svd(rank=3,values=fp16)"):
            names.append(f"lr={lr},code={code}")
            write_run(folder / names[-1], settings=replace(Settings(), lr=lr))
    names += ["../outside", "", "missing"]
    (tmp_path / "outside").mkdir()
    lines = [json.dumps({"name": name}) for name in names]
    (folder / "sweep.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_a_sweep_has_its_grid(sweep, capsys):
    assert main(["report", str(sweep)]) == 0
    path = sweep / "report.html"
    assert capsys.readouterr().out == f"{path}\n"
    text = parse_page(path.read_text()).text
    assert "Results by lr and code lr \\ code topk svd(rank=3,values=fp16) 0.01 86.47%" in text


def test_trials_lie_within_the_folder_of_the_sweep(sweep):
    assert len(runs_of_sweep(sweep)) == 4
    assert not runs_of_sweep(sweep / "lr=0.1,code=topk")


def test_a_sweep_of_one_option_is_a_curve(tmp_path):
    runs = [write_run(tmp_path / f"lr={lr}", settings=Settings(lr=lr)) for lr in (0.001, 0.1, 0.01)]
    assert parse_page(comparison_html(runs)).text.count("Result by lr") == 2


@pytest.mark.parametrize("name", ["x", "lr", "a,b=2", ""])
def test_other_names_are_no_points(name):
    assert point_of(name) == {}


def test_the_page_lies_beside_the_runs_or_where_it_is_asked_for(runs, tmp_path, capsys):
    words = ["report", *map(str, runs)]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    assert main([*words, "--out", str(tmp_path / "more" / "page.html")]) == 0
    assert (tmp_path / "more" / "page.html").read_text() == (tmp_path / "report.html").read_text()
