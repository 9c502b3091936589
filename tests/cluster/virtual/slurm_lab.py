"""A real SLURM on hosts of a virtual cluster: munged, slurmctld on the first, slurmd on each."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

from cluster.virtual.vc import Tool
from support.jobs import until

__all__ = ["INSTALL", "Slurm", "lacking"]

INSTALL = "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
CPUS = 4  # that SLURM shall believe in, so that two tasks a host fit on any machine
CONF = """\
ClusterName=virtual
SlurmctldHost=h1(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=30
{options}
NodeName=h[1-{hosts}] NodeAddr=10.77.0.[1-{hosts}] CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=9
"""


def lacking() -> str:
    """Returns why SLURM cannot run on this machine; empty if it can."""
    missing = [name for name in DAEMONS if found(name) is None]
    if missing:
        return f"there is no {', '.join(missing)}; `{INSTALL}` brings them"
    return "" if os.geteuid() == 0 else "SLURM's daemons start jobs of users, which takes root"


def found(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


class Slurm:
    """SLURM with its commands, as a context manager."""

    def __init__(self, tool: Tool, folder: Path, hosts: int, options: str = "") -> None:
        """Nothing runs yet.

        Args:
            tool: a virtual cluster that is up.
            folder: of its files, which all hosts see.
            hosts: how many there are.
            options: further lines of slurm.conf.
        """
        self._tool, self._folder, self._hosts, self._stack = tool, folder, hosts, ExitStack()
        folder.mkdir()
        (folder / "state").mkdir()
        text = CONF.format(folder=folder, hosts=hosts, cpus=CPUS, options=options)
        (folder / "slurm.conf").write_text(text)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        tool.environment |= {"SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> "Slurm":
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        at = self._folder
        files = [f"--{name}-file={at}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        # Of a folder that others cannot enter it would have none, but for --force.
        munged = [*files, f"--socket={at}/munge.socket", "--foreground", "--force"]
        self._daemon("h1", "munged", *munged, "--num-threads=2")
        until((at / "munge.socket").exists, "munged")
        self._daemon("h1", "slurmctld", "-D")
        for number in range(1, self._hosts + 1):
            self._daemon(f"h{number}", "slurmd", "-D", "-N", f"h{number}")
        until(lambda: self.on("h1", "sinfo", "-h", "-o", "%T %D", "-p", "main") ==
              f"idle {self._hosts}", "all nodes to be idle")  # fmt: skip

    def _daemon(self, host: str, program: str, *words: str) -> None:
        log = self._folder / f"{program}.{host}.out"
        path = found(program) or program
        self._stack.callback(self._tool.start(log, "exec", host, path, *words).kill)

    def on(self, host: str, *words: str) -> str:
        """Returns the output of a command on a host; empty if it fails, as while daemons start."""
        done = self._tool("exec", host, *words)
        return done.stdout.strip() if done.returncode == 0 else ""

    def does(self, *words: str) -> str:
        """Returns the output of a command on the first host. The command must succeed."""
        return self._tool.does("exec", "h1", *words)

    def field(self, job: str, name: str) -> str:
        """Returns a field of `scontrol show job`: JobState, Restarts, ExitCode and so on."""
        output = self.on("h1", "scontrol", "show", "job", job).split()
        return next((word.partition("=")[2] for word in output if word.startswith(f"{name}=")), "")
