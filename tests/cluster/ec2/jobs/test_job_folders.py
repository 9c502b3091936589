"""Jobs of this machine, by job.sh: the folder of each, and the hosts with which it starts."""

import os
import subprocess
from argparse import Namespace

import pytest

from atomo.training.folder.finished_marker import finish
from atomo.training.job.events import DONE, INTERRUPTED
from atomo_cluster.ec2.commands.hosts import fetch
from atomo_cluster.ec2.commands.jobs.jobs import cells
from atomo_cluster.ec2.hosts.ssh import Host, Ssh
from atomo_cluster.ec2.hosts.transfer import HostSource
from atomo_cluster.ec2.invocation.document import Document
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.jobs.job import job_command, jobs_in, script_of, start_command, started_job
from atomo_cluster.ec2.settings.cluster import Cluster

OPTIONS = '#!/bin/bash\nprintf "%s\\n" "$@" >seen.new\nmv seen.new seen\n'
MARK = 'mkdir -p "$6" && cp {}/finished.json "$6"'  # that of the library
FINISHES = OPTIONS + MARK.format(f"../{DONE}") + "\n"
STOPS = OPTIONS + MARK.format(f"../{INTERRUPTED}") + "; exit 130\n"
BREAKS_OFF = OPTIONS + 'mkdir -p "$6"\nexit 5\n'
WAITS = "#!/bin/bash\nmkfifo wait && cat wait\n"
# Only the hosts whose names are in the file `up` answer ssh.
SSH = '#!/bin/bash\nfor word; do before=$host host=$word; done\ngrep -qx "$before" {up}\n'


class Master:
    """A checkout in which jobs run."""

    def __init__(self, folder, monkeypatch):
        self.home, self.checkout = folder, folder / "atomo"
        self.checkout.mkdir()
        (folder / "bin").mkdir()
        for reason in (DONE, INTERRUPTED):
            (folder / reason).mkdir()
            finish(folder / reason, 1, reason)
        self.script(folder / "bin/ssh", SSH.format(up=folder / "up"))
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        self.runs(FINISHES)

    def script(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def runs(self, text):
        self.script(self.checkout / "run_pytorch.sh", text)

    def call(self, command, stdin=""):
        return subprocess.run(["bash", "-c", command], cwd=self.home, input=stdin, text=True,
                              capture_output=True, timeout=120, check=True).stdout  # fmt: skip

    def start(self, *words, hosts=3, **settings):
        """Starts a job; returns its number and its folder."""
        cluster = Cluster(**settings)
        command = start_command(cluster, hosts, words, " ".join(words) or "train", queue=True)
        return started_job(self.call(command, script_of(cluster, hosts, "", words)))

    def ends(self, *words, **settings):
        """Runs a job to its end; returns its number, folder and output."""
        job, folder = self.start(*words, **settings)
        verb = job_command(Cluster(), "follow", job, "+1")
        return job, folder, self.call(f"{verb} || true")

    @property
    def jobs(self):
        return jobs_in(self.call(job_command(Cluster(), "list")))

    @property
    def options(self):
        return (self.checkout / "seen").read_text().splitlines()


@pytest.fixture
def master(tmp_path, monkeypatch):
    return Master(tmp_path, monkeypatch)


@pytest.mark.slow
def test_each_job_of_a_queue_has_a_folder_which_jobs_and_logs_name(master):
    first, second = master.ends("--code", "qsgd"), master.ends("--code", "svd")
    again = master.ends("--code", "qsgd")  # the first one is done: this is a run of its own
    folders = [first[1], second[1], again[1]]
    assert len(set(folders)) == 3
    assert all(folder.startswith(f"runs/job-{job}-") for job, folder, _ in (first, second, again))
    assert [job.folder for job in master.jobs] == folders
    assert f"job 2 trains in {second[1]}\n" in second[2]
    assert f"in {first[1]}" in cells(master.jobs[0], 0)[-1]
    assert master.options[4:6] == ["--train-dir", again[1]]


@pytest.mark.slow
def test_the_same_command_goes_on_in_the_folder_of_a_run_that_was_cut_off(master):
    master.runs(BREAKS_OFF)
    _, folder, _ = master.ends("--epochs", "3")
    assert master.ends("--epochs", "4")[1] != folder
    assert master.ends("--epochs", "3")[1] == folder
    master.runs(STOPS)  # with a checkpoint, as by Ctrl-C, a spot notice, or for new hosts
    assert master.ends("--epochs", "3")[1] == folder
    assert master.ends("--epochs", "3")[1] == folder
    subprocess.run(["rm", "-r", master.checkout / "jobs"], check=True)  # another master, one share
    master.runs(FINISHES)
    assert master.ends("--epochs", "3")[1] == folder
    assert master.ends("--epochs", "3")[1] != folder


def test_two_jobs_that_are_asked_for_at_once_do_not_share_a_folder(master):
    master.runs(WAITS)
    (_, one), (_, two) = master.start("--epochs", "3"), master.start("--epochs", "3")
    assert one != two
    go = "until [ -p atomo/wait ]; do :; done; echo >atomo/wait; rm atomo/wait"
    master.call(f"{go}; {go}")
    master.call(job_command(Cluster(), "follow", "2", "+1"))


def test_fetch_names_the_folders_of_jobs_that_have_new_files(monkeypatch, tmp_path, capsys):
    names = [".commands/job-2-b", "job-2-b/metrics.jsonl", "job-1-a/metrics.jsonl", "job-2-b/model"]
    monkeypatch.setattr(fetch, "fetch", lambda *_: names)
    run = Run(Namespace(), Document(enabled=False))
    source = HostSource(Ssh("me", None, tmp_path), Host("a", "b", "master", "c", "d"), "runs")
    assert fetch.brought(run, source, tmp_path) == names
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == [f"  {tmp_path}/job-1-a", f"  {tmp_path}/job-2-b"]


@pytest.mark.slow
def test_a_folder_that_is_named_stays(master):
    for option in ("--train-dir=runs/mine", "--train_dir=runs/mine"):
        assert master.ends(option)[1] == "runs/mine"
        assert [word for word in master.options if "dir" in word] == [option]


@pytest.mark.slow
def test_a_job_starts_with_the_hosts_that_answer_and_names_the_rest(master):
    (master.checkout / "hosts_address").write_text("10.0.0.1\n10.0.0.2\n10.0.0.3\n10.0.0.4\n")
    (master.home / "up").write_text("10.0.0.2\n10.0.0.4\n")
    _, _, said = master.ends("--num-aggregate", "3", hosts=4)
    assert "4 hosts, of which these do not answer ssh from the master: 10.0.0.3\n" in said
    assert "the job starts with the 3 others" in said
    assert master.options[:4] == ["--n", "3", "--hostfile", "jobs/1/hosts"]
    assert master.options[-1] == "--num-aggregate=2"
    left = (master.checkout / "jobs/1/hosts").read_text().split()
    assert left == ["10.0.0.1", "10.0.0.2", "10.0.0.4"]
    (master.checkout / "seen").unlink()
    _, _, said = master.ends("--min-workers", "3", hosts=4)
    assert "the job does not start: it needs 4 hosts (--min-workers), and 3 answer" in said
    assert not (master.checkout / "seen").exists()
    assert (master.jobs[-1].state, master.jobs[-1].code) == ("failed", 9)
    (master.home / "up").write_text("10.0.0.2\n10.0.0.3\n10.0.0.4\n")
    master.ends("--min-workers", "3", hosts=4)
    assert master.options[:4] == ["--n", "4", "--hostfile", "hosts_address"]


@pytest.mark.slow
def test_num_replicas_to_aggregate_of_the_published_configuration_is_an_option_of_jobs(master):
    master.ends(num_replicas_to_aggregate=2)
    assert master.options[6:8] == ["--num-aggregate", "2"]
    master.ends("--num_aggregate", "1", num_replicas_to_aggregate=2)
    assert master.options[6:8] == ["--num_aggregate", "1"]
