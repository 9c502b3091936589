"""`fetch`: downloads the results of a run."""

import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.aws.bucket import Bucket
from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile
from atomo_cluster.ec2.hosts.transfer import HostSource, S3Source, Source, fetch
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.supervisor.results import FETCHED
from atomo_cluster.ec2.targets.selection import cluster_master, host_keys, ssh_of

HELP: Final = """\
  pytorch_ec2.py fetch
  pytorch_ec2.py fetch --to ~/runs/tonight

Brings checkpoints and records home: from `results` on S3 where there is such a place, also when
hosts are gone, else from the master. Files that are here already are not copied again, and a
partial file continues: after an interruption give the same command. Nothing is deleted."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--to", type=Path, default=None, metavar="FOLDER",
                        help="where to (default results/NAME)")  # fmt: skip
    add_hostfile(parser)


def run(run: Run) -> int:
    folder = run.options.to or Path("results") / run.cluster.name
    if run.cluster.results and not run.options.hostfile:
        names = brought(run, S3Source(Bucket(run.aws, run.cluster.results)), folder)
    else:
        names = from_master(run, folder)
    run.tell({"fetched": names, "folder": str(folder)})
    return 0


def from_master(run: Run, folder: Path) -> list[str]:
    """Downloads results from the master and marks them there as fetched."""
    master, ssh = cluster_master(run), ssh_of(run)
    host_keys(run, ssh).pin(master)
    folder_set, home = run.cluster.out_dir, run.cluster.remote_dir
    remote_folder = folder_set if folder_set.startswith("/") else f"{home}/{folder_set}"
    source = HostSource(ssh, master, remote_folder)
    names = brought(run, source, folder)
    mark = f"mkdir -p .atomo && touch -d @{shlex.quote(source.begun)} {FETCHED}"
    ssh.run(master, mark).checked("telling the master")
    return names


def brought(run: Run, source: Source, folder: Path) -> list[str]:
    """Downloads files, and reports their number and the folders of jobs with new ones."""
    names = fetch(source, folder, run.say)
    jobs = dict.fromkeys(Path(name).parts[0] for name in names if name.startswith("job-"))
    run.say(f"{len(names)} files came; {folder} has all that there is")
    for job in sorted(jobs):
        run.say(f"  {folder / job}")
    return names
