"""Training over ssh, TCP and slow links between hosts, with and without faults."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from cluster.virtual.vc import Tool
from support.jobs import until

from atomo.launch.exit_messages import FAREWELL
from atomo.training.checkpoints.checkpoint import finished, latest

pytestmark = pytest.mark.slow

TRAIN = ["bash", "run_pytorch.sh", "--network=LeNet", "--batch-size=8", "--threads=1"]
TRAIN += ["--code=sgd", "--log-interval=1"]
SLOW = "100mbit"
STEPS = 12


def shared(tool: Tool) -> Path:
    return tool.clusters / "virtual" / "shared"


def hosts(tool: Tool, count: int) -> str:
    """Returns a host file with the first hosts of the cluster."""
    lines = (tool.clusters / "virtual" / "hosts_address").read_text().splitlines()
    path = shared(tool) / "hosts"
    path.write_text("\n".join([line for line in lines if line[0] != "#"][:count]) + "\n")
    return f"--hostfile={path}"


def counters(tool: Tool) -> dict[str, tuple[int, int]]:
    """Bytes sent and received by every host."""
    found = json.loads(tool.does("status", "--json"))["hosts"]
    return {host["name"]: (host["sent_bytes"], host["received_bytes"]) for host in found}


@pytest.mark.long
def test_lenet_trains_over_three_hosts_and_its_bytes_cross_the_links(tool, environment, tmp_path):
    tool.does("up", "--hosts", "4", "--rate", SLOW)
    tool.environment |= environment
    run = shared(tool) / "run"
    before = counters(tool)
    evaluate = ["bash", "evaluate_pytorch.sh", f"--model-dir={run}", "--poll-interval=0.2"]
    train = [*TRAIN, "--n=4", hosts(tool, 3), f"--train-dir={run}", "--evaluator=none"]
    train += [f"--max-steps={STEPS}", f"--eval-freq={STEPS // 2}", "--down=weights"]
    evaluator = tool.start(tmp_path / "evaluator", "exec", "h4", *evaluate, "--threads=1")
    job = tool.start(tmp_path / "job", "exec", "h1", *train)
    try:
        assert job.ends() == 0, job.output
        assert evaluator.ends() == 0, evaluator.output
    finally:
        job.kill()
        evaluator.kill()
    assert latest(run) == STEPS
    assert finished(run) is not None
    scores = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [score["step"] for score in scores] == [STEPS // 2, STEPS]
    assert scores[-1]["top1"] > 0.5
    assert_crossed(run, before, counters(tool))
    assert not any(tool.host(name)["processes"] for name in before)


def assert_crossed(
    run: Path, before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]
) -> None:
    """Checks that the run reports the bytes that the interfaces counted, within 5 %.

    Worker 1 sits beside the master, on h1: its share, a third with `sgd`, crosses no link. It hands
    one copy of the weights on to h2, and that to h3.
    """
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [*range(1, STEPS + 1)]
    up = sum(step["up_bytes"] for step in steps) / 3
    down = sum(step["down_bytes"] for step in steps)
    for name, sent, received in [("h1", down, 2 * up), ("h2", up + down, down), ("h3", up, down)]:
        crossed = tuple(a - b for a, b in zip(after[name], before[name], strict=True))
        assert crossed == pytest.approx((sent, received), rel=0.05), name
    assert sum(after["h4"]) - sum(before["h4"]) < up / 100  # it reads the shared folder alone


def rank_on(tool: Tool, name: str) -> int:
    """Returns the process of the only rank on a host."""
    found = tool.host(name)["processes"]
    return next(one["pid"] for one in found if " atomo rank " in one["command"])


def workers(run: Path) -> list[int]:
    """Returns how many workers each step of a run had."""
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    return [json.loads(line)["workers"] for line in lines if line.endswith(b"\n")]


def test_a_hung_worker_is_killed_on_its_host_and_a_lost_host_is_left_out(
    tool, environment, tmp_path
):
    tool.does("up", "--hosts", "3", "--rate", "1gbit")
    tool.environment |= environment
    run = shared(tool) / "run"
    train = [*TRAIN, "--n=3", hosts(tool, 3), f"--train-dir={run}", "--evaluator=none", "--lr=1e-4"]
    train += ["--timeout=8", "--eval-freq=2", "--epochs=1000"]
    job = tool.start(tmp_path / "job", "exec", "h1", *train)
    try:
        until(lambda: latest(run) or job.process.poll() is not None, "a checkpoint")
        os.kill(rank_on(tool, "h2"), signal.SIGSTOP)
        job.says("worker 1 did not answer for 8 s, the --timeout, and was killed")
        job.says("worker 1 is gone; 1 of 2 workers continue")
        # A restart repeats the steps after the checkpoint: one of a single worker must be in it.
        until(lambda: 1 in workers(run)[: latest(run)] or job.process.poll() is not None,
              "a checkpoint of a step of one worker")  # fmt: skip
        tool.does("partition", "h3")
        job.says("; without 10.77.0.3, which did not answer")
        restart = re.search("restart 1 of 3, from the checkpoint of step ([0-9]+);", job.output)
        assert restart, job.output
        found = int(restart[1])
        until(lambda: (latest(run) or 0) > found or job.process.poll() is not None, "a new one")
        assert not any("rank" in one["command"] for one in tool.host("h3")["processes"])
        # MPI's own goodbye would wait for ever for a host all of whose ranks are dead.
        os.kill(rank_on(tool, "h2"), signal.SIGKILL)
        until(lambda: job.output.count("1 of 2 workers continue") == 2, "the loss to be noticed")
        until(lambda: 1 in workers(run)[found:] or job.process.poll() is not None,
              "a step of one worker")  # fmt: skip
        job.process.send_signal(signal.SIGINT)
        assert job.ends() == 130, job.output
        assert FAREWELL not in job.output
    finally:
        job.kill()
    assert "Traceback" not in job.output
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [*range(1, len(steps) + 1)]
    assert set(workers(run)[:found]) == {1, 2}
    assert set(workers(run)[found:]) == {1, 2}  # two until one was killed
    tool.does("heal", "h3")
    until(lambda: not any(tool.host(name)["processes"] for name in ("h1", "h2", "h3")),
          "every rank and every ssh to end")  # fmt: skip
