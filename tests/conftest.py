"""The selection of tests, their distribution over processes, and what all of them share."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import checks

checks.install()

# Without a GPU Triton interprets its kernels on the CPU. It reads this when it is imported, as by
# any test that runs before those of kernels.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


# Below tests/: tests that start enough processes for two cores, change the machine, or share a
# fixture that is slower than most of them. One test of each group runs at a time; a test belongs to
# the first group that matches.
GROUPS = {
    # Some mount a disk, which tests of virtual hosts would take for one left behind.
    "faults": (
        "cli/test_cli_errors.py",
        "cli/test_cli_faults.py",
        "cluster/virtual/",
        "training/folder/test_checkpoint.py::test_a_full_disk",
    ),
    "jobs": ("cli/", "transports/test_mpi.py"),
    "ec2": ("cluster/ec2/",),
    "ranks": (
        "hooks/test_ddp.py",
        "hooks/test_examples.py",
        "hooks/test_frameworks.py",
        "hooks/test_fsdp.py",
        "hooks/test_leaving.py",
        "hooks/test_local_frameworks.py",
        "transports/test_torch_distributed.py",
    ),
    "files": ("repository/test_imports.py",),  # each file is parsed once
    "loops": ("api/test_api.py", "api/test_encoder.py"),  # take every codec once
}
# Below tests/: tests that need no compiled loop. They run while the first group compiles the loops,
# which several processes would otherwise do at the same time.
UNCOMPILED = (
    "cluster/ec2/", "config/", "launch/", "options/", "report/", "repository/", "workloads/"
)  # fmt: skip
COMPILED = ("repository/test_core_alone.py", "repository/test_fuzz.py")  # their exceptions

# The option that runs the tests of a mark, which are left out otherwise.
ASKED_FOR = {"slow": "all", "long": "long"}

# Scripts of ranks, which import modules next to them; pytest looks for examples in every file.
collect_ignore = [
    "gpu/cuda_ranks.py",
    "hooks/doors.py",
    "hooks/forks.py",
    "hooks/fsdp_ranks.py",
    "hooks/sharding/scatter_ranks.py",
    "hooks/local_frameworks.py",
    "hooks/local_fsdp.py",
    "hooks/resuming.py",
    "transports/mpi_ranks.py",
    "transports/torch_ranks.py",
]

left_out = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests too")
    parser.addoption("--long", action="store_true", help="run the slow and the long tests too")


def pytest_configure(config: pytest.Config) -> None:
    config.option.all |= config.option.long
    config.stash[left_out] = {}
    gc.disable()  # until all tests are collected: objects made until then live to the end
    # A shell starts background processes with SIGINT ignored. Jobs of tests would inherit that, and
    # could not be interrupted.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests and all modules: nothing to look through again and again
    gc.enable()


def is_in(nodeid: str, places: tuple[str, ...]) -> bool:
    return nodeid.removeprefix("tests/").startswith(places)


def group_of(nodeid: str) -> str:
    """Returns the group in which a test runs by itself; empty if it may run anywhere."""
    return next((name for name, places in GROUPS.items() if is_in(nodeid, places)), "")


def tier_of(item: pytest.Item) -> str:
    """Returns the slowest tier that a mark puts a test in; empty: it always runs."""
    return next((tier for tier in ("long", "slow") if is_marked(item, tier)), "")


def is_marked(item: pytest.Item, tier: str) -> bool:
    """True if a mark names the whole test, or cases of which this is one."""
    return any(
        not (cases := cases_of(mark)) or case_of(item).startswith(cases)
        for mark in item.iter_markers(tier)
    )


def cases_of(mark: pytest.Mark) -> tuple[str, ...]:
    """Returns how the marked cases of a test begin; empty: all of them are meant."""
    return tuple(mark.kwargs.get("cases", ()))


def case_of(item: pytest.Item) -> str:
    """Returns the parameters in a test's name, as pytest writes them."""
    return item.nodeid.partition("[")[2]


def left_out_as(item: pytest.Item) -> str:
    """Returns the tier that leaves a test out, if the tier was not requested; empty if the test
    runs.
    """
    tier = tier_of(item)
    named = any("::" in word and item.nodeid.startswith(word) for word in item.config.args)
    return "" if not tier or named or item.config.getoption(ASKED_FOR[tier]) else tier


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if odd := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        # An address differs between pytest-xdist's processes, which then run nothing at all.
        raise pytest.UsageError(f"give this test ids without addresses: {odd[0]}")
    if not any("[" in word for word in config.args):
        check_cases(items)
    marks = [left_out_as(item) for item in items]
    config.stash[left_out] = {mark: marks.count(mark) for mark in ASKED_FOR}
    chosen = [item for item, mark in zip(items, marks, strict=True) if not mark]
    items[:] = sorted(chosen, key=turn)


def check_cases(items: list[pytest.Item]) -> None:
    """Raises UsageError if a mark is for cases that its test does not have."""
    there: dict[str, list[str]] = {}
    for item in items:
        there.setdefault(item.nodeid.partition("[")[0], []).append(case_of(item))
    for item in items:
        test = item.nodeid.partition("[")[0]
        for mark in [*item.iter_markers("slow"), *item.iter_markers("long")]:
            for case in cases_of(mark):
                if not any(other.startswith(case) for other in there[test]):
                    raise pytest.UsageError(f"{test} has no case {case}, which its mark names")


def turn(item: pytest.Item) -> int:
    """Returns the position of a test in the order: first what compiles for all others; then, where
    one runs at a time, those of the longest group.
    """
    order = ("loops", "faults", "jobs", "ec2", "uncompiled", "ranks")
    early = is_in(item.nodeid, UNCOMPILED) and not is_in(item.nodeid, COMPILED)
    group = "uncompiled" if early else group_of(item.nodeid)
    return order.index(group) if group in order else len(order)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Returns the number of test processes: with all tests one more than there are cores, since
    processes with jobs mostly wait. More would not pay: each one imports everything first.
    """
    return (os.cpu_count() or 1) + (1 if config.getoption("all") else 0)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Sends a group of tests to one process, and other test functions to any idle process."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # pytest-xdist's hook for groups of tests
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid) or nodeid.partition("[")[0]

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node: Any, error: object) -> None:
    """Every process has collected all tests, so any of them knows how many were left out."""
    node.config.stash[left_out] = getattr(node, "workeroutput", {}).get("left_out", {})


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the printing of pytest's last line
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = config.stash[left_out]
        return (yield)
    result = yield
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    for mark, count in config.stash[left_out].items():
        if count:
            option = ASKED_FOR[mark]
            line = f"{mark} tests left out: {count}; bash tests/run.sh --{option} runs them too"
            reporter.write_line(line)
    return result


@pytest.fixture(scope="session")
def at_length(pytestconfig: pytest.Config) -> bool:
    """True if the long tests run too; some tests then do more than in CI."""
    return bool(pytestconfig.getoption("long"))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Returns the wheel in an environment of its own: `wheels.Installed`."""
    from support.wheels import Installed  # imports the modules under test, which are set up later

    return Installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Limits PyTorch to one thread, as several ranks share two cores in these tests."""
    import torch  # not at the top: the process that only hands out tests has no use for it

    torch.set_num_threads(1)
