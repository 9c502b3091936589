"""`init`: writes a configuration file to start from."""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.settings.yaml_file import DEFAULT_FILE, template
from atomo_cluster.errors import ConfigError
from atomo_cluster.plain_files import READABLE, replace_plain

HELP: Final = """\
  pytorch_ec2.py init
  pytorch_ec2.py init big.yaml

Costs nothing and asks AWS nothing. A file that is there already is kept, unless --force."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT_FILE, metavar="FILE",
                        help=f"where to write (default {DEFAULT_FILE})")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="overwrite the file")


def run(run: Run) -> int:
    path: Path = run.options.file
    if os.path.lexists(path) and not run.options.force:
        raise ConfigError(f"{path} exists already; --force overwrites it")
    try:
        replace_plain(path, template(), READABLE)
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from error
    run.say(f"wrote {path}; edit it, then `pytorch_ec2.py plan`")
    run.tell({"file": str(path)})
    return 0
