"""The garbage collector skips imported objects, and collects objects made afterwards."""

import subprocess
import sys

SCRIPT = """
import gc
import sys
from atomo.core.process.collector import import_for_good

first = import_for_good("grown")
assert not first.collecting
assert gc.isenabled()
assert not any(thing is first.made for thing in gc.get_objects()), "it is looked through"
count = gc.get_freeze_count()
later = [[]]
assert import_for_good("grown") is first
assert gc.get_freeze_count() == count
assert any(thing is later for thing in gc.get_objects())

gc.disable()  # as who embeds a command may have done
try:
    import_for_good("nowhere")
except ModuleNotFoundError:
    assert not gc.isenabled()
"""


def test_what_is_imported_is_left_alone_and_all_else_is_collected(tmp_path):
    (tmp_path / "grown.py").write_text("import gc\ncollecting = gc.isenabled()\nmade = [[]]\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
