"""Every wait for a child process has a bound."""

import ast
from collections.abc import Iterator
from pathlib import Path

import atomo

PACKAGE = Path(atomo.__file__).parent
RUNS = {"subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output"}
# Waits for processes that were killed or have ended, by file and line of code.
ENDED = {
    ("launch/jobs/ssh.py", "process.wait()"),  # killed the line before
    ("launch/jobs/streams.py", "self.handle.wait()"),  # killed, or at the end of its output
    ("launch/supervisor.py", "process.wait()"),  # at the end of its output
}


def unbounded(path: Path) -> Iterator[str]:
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "subprocess" in text or "Process" in text else ():
        if isinstance(node, ast.Call) and "timeout" not in {word.arg for word in node.keywords}:
            name = ast.unparse(node.func)
            ends = name.endswith((".wait", ".communicate")) and not node.args
            if name in RUNS or ends:
                yield ast.unparse(node)


def test_no_child_is_waited_for_without_a_bound() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), call)
        for path in PACKAGE.rglob("*.py")
        for call in unbounded(path)
    }
    assert found == ENDED
