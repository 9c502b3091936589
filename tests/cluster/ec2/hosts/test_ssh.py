"""Commands on the cluster's hosts: moto's instances, reached through real sshds."""

import pytest
from cluster.ec2.support.lab import banner
from cluster.ec2.support.sshd import closed_port, make_key, why_not

from atomo_cluster.ec2.invocation.run import Run

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=f"NOT TESTED: {why_not()}"),
    pytest.mark.slow,
]


def test_a_command_runs_on_every_host_at_once(lab):
    lab.show_keys()
    shown = lab("run_command", "all", "echo here; echo aside >&2").out.splitlines()
    names = ("deeplearning-worker2", "master")
    assert sorted(shown) == [f"{name}: {word}" for name in names for word in ("aside", "here")]
    done = lab("run_command", "all", "echo from $HOME; echo aside >&2", "--json")
    assert done.code == 0, done.err
    homes = [f"from {host.home}\n" for host in lab.hosts]
    assert [one["out"] for one in done.record] == homes
    assert {one["err"] for one in done.record} == {"aside\n"}
    for words in ("workers", lab.records[1]["id"], "deeplearning-worker2"):
        done = lab("run_command", words, "true", "--json")
        assert [one["host"]["id"] for one in done.record] == [lab.records[1]["id"]]
    unknown = lab("run_command", "i-0", "true")
    assert unknown.code == 2
    assert "no host 'i-0' in the cluster" in unknown.err


def test_lines_are_shown_while_the_command_still_runs(lab, monkeypatch):
    """The host goes on only once its line was seen."""
    lab.show_keys()
    monkeypatch.setattr(Run, "say", lambda run, text: (lab.folder / "seen").write_text(text))
    waits = f"echo $HOME; until [ -e {lab.folder}/seen ]; do :; done; echo went on"
    done = lab("run_command", "master", waits, "--json")
    assert done.record[0]["out"].splitlines()[1] == "went on"


def test_a_command_that_fails_is_named_with_its_host(lab):
    lab.show_keys()
    lab.hosts[1].program("flaky", "#!/bin/bash\necho broken >&2\nexit 9\n")
    lab.hosts[0].program("flaky", "#!/bin/bash\nexit 0\n")
    done = lab("run_command", "all", "flaky")
    assert done.code == 11
    assert "FAILED: exit code 9: broken" in done.out
    assert "failed on 1 of 2 hosts: deeplearning-worker2" in done.err


def test_host_keys_come_from_the_console(lab):
    lab.show_keys()
    assert lab("run_command", "all", "true").code == 0
    lines = [line.split() for line in lab.known_hosts.splitlines()]
    assert {line[0] for line in lines} == {record["id"] for record in lab.records}
    assert {line[3] for line in lines} == {"console"}


def test_a_host_that_is_not_what_the_console_says_is_refused(lab, tmp_path):
    other = make_key(tmp_path / "other")
    for record in lab.records:
        lab.cloud.consoles[record["id"]] = banner(other)
    done = lab("run_command", "all", "touch $HOME/was-here")
    assert done.code == 11
    assert "somebody may be in between" in done.out
    assert not any((host.home / "was-here").exists() for host in lab.hosts)


def test_without_a_console_keys_are_scanned_and_verified_later(lab, tmp_path):
    assert lab("run_command", "all", "true").code == 0
    assert lab.known_hosts.count(" scanned\n") >= 2
    lab.show_keys()
    assert lab("run_command", "all", "true").code == 0
    assert "scanned" not in lab.known_hosts
    assert lab.known_hosts.count(" console\n") == 2


def test_scanned_keys_that_the_console_contradicts_are_refused(lab, tmp_path):
    assert lab("run_command", "all", "true").code == 0
    lab.cloud.consoles[lab.records[0]["id"]] = banner(make_key(tmp_path / "other"))
    done = lab("run_command", "all", "touch $HOME/was-here")
    assert done.code == 11
    assert "shows other host keys than were scanned" in done.out
    assert not (lab.hosts[0].home / "was-here").exists()


def test_a_host_key_that_changes_is_refused(lab):
    assert lab("run_command", "all", "true").code == 0
    (lab.hosts[0].folder / "host_key").unlink()
    make_key(lab.hosts[0].folder / "host_key")
    done = lab("run_command", "all", "true")
    assert done.code == 11
    assert "its host key is not the pinned one" in done.out


def test_a_scan_that_lacks_a_kind_of_key_is_enough(lab, monkeypatch):
    public = " ".join(lab.hosts[0].public.split()[:2])
    answers = iter([{public, "ssh-rsa AAAA"}, {public}])
    monkeypatch.setattr("atomo_cluster.ec2.hosts.host_keys.scan", lambda name, port: next(answers))
    assert lab("run_command", "master", "true").code == 0
    assert "ssh-rsa" not in lab.known_hosts


def test_two_scans_that_differ_are_refused(lab, monkeypatch):
    answers = iter([{"ssh-ed25519 AAAA"}, {"ssh-ed25519 BBBB"}])
    monkeypatch.setattr("atomo_cluster.ec2.hosts.host_keys.scan", lambda name, port: next(answers))
    done = lab("run_command", "master", "true")
    assert done.code == 11
    assert "two scans of its host keys differ" in done.out


def test_an_unreachable_host_is_named_and_the_others_still_serve(lab):
    lab.show_keys()
    master, worker = (record["public_ip"] for record in lab.records)
    lab.lead({master: lab.ports[master], worker: closed_port()})
    done = lab("run_command", "all", "echo here")
    assert done.code == 11
    assert "here" in done.out
    assert "sshd does not run there (yet): try again in a minute" in done.out
    assert "failed on 1 of 2 hosts: deeplearning-worker2" in done.err


def test_a_wrong_key_is_named(lab, tmp_path):
    lab.show_keys()
    for host in lab.hosts:
        host.admit(make_key(host.folder / "somebody"))
    done = lab("run_command", "all", "true")
    assert done.code == 11
    assert "the host does not take this key: is path_to_keyfile the private half" in done.out


def test_idle_busy_and_unknown_hosts(lab):
    lab.show_keys()
    lab.hosts[0].program("pgrep", "#!/bin/bash\nexit 0\n")
    lab.hosts[1].program("pgrep", "#!/bin/bash\nexit 1\n")
    busy, idle = (record["id"] for record in lab.records)
    assert lab("list_idle_instances", "--json").record == {busy: "busy", idle: "idle"}
    assert "1 of 2 hosts are idle" in lab("list_idle_instances").out
    lab.lead(dict.fromkeys(lab.ports, closed_port()))
    states = lab("list_idle_instances", "--json").record
    assert states == {busy: "unknown", idle: "unknown"}


def test_python_is_ended_kindly_on_the_chosen_hosts_of_this_cluster(lab):
    lab.show_keys()
    for host in lab.hosts:
        host.program("pgrep", "#!/bin/bash\nexit 1\n")
    assert lab("kill_python", "workers").code == 0
    assert lab.hosts[1].called.splitlines()[0].startswith("pkill -TERM -u ")
    assert "KILL" not in lab.hosts[1].called
    assert not lab.hosts[0].called
    assert lab("kill_python").code == 0
    assert lab.hosts[0].called


@pytest.mark.long
def test_all_python_is_ended_only_when_it_is_meant(lab):
    lab.show_keys()
    for host in lab.hosts:
        host.program("pgrep", "#!/bin/bash\nexit 0\n")
        host.program("sleep", "#!/bin/bash\n")
    assert lab("kill_all_python", answer="n\n").code == 13
    assert not any(host.called for host in lab.hosts)
    assert lab("kill_all_python", "--yes").code == 0
    assert all("pkill -KILL" in host.called for host in lab.hosts)  # it did not go by itself


JOB = """#!/bin/bash
# A launcher that writes a checkpoint when it is signalled, and takes a while for it.
echo "$(basename "$0") $*" | sed "s/-u [0-9]* //" >>{log}
case "$*" in *"atomo train"*) ;; *) exit 1 ;; esac
case $(basename "$0") in
  pkill) touch {log}.told ;;
  pgrep)
    [ -e {log}.told ] || exit 0
    [ -e {log}.saved ] && exit 1
    echo checkpoint >>{log}
    touch {log}.saved ;;
esac
"""


@pytest.mark.parametrize("words", [[], ["workers"], ["--wait", "5"]])
def test_a_training_writes_its_checkpoint_before_python_ends(lab, words):
    lab.show_keys()
    log = lab.folder / "log"
    for program in ("pgrep", "pkill"):
        lab.hosts[0].program(program, JOB.format(log=log))
        lab.hosts[1].program(program, f'#!/bin/bash\necho "worker $*" >>{log}\nexit 1\n')
    assert lab("kill_python", *words).code == 0
    said = log.read_text().splitlines()
    saved = said.index("checkpoint")
    assert "pkill -f -- [-]m atomo train" in [line.replace("-TERM ", "") for line in said[:saved]]
    assert not any("-x python" in line for line in said[:saved])
    assert any("-x python" in line for line in said[saved:])


def test_a_training_that_does_not_end_is_ended_and_named(lab):
    lab.show_keys()
    for host in lab.hosts:
        host.program("pgrep", "#!/bin/bash\nexit 0\n")
        host.program("sleep", "#!/bin/bash\n")
    done = lab("kill_python", "--wait", "2")
    assert "master: exit code 75: the training has not ended within 2 s" in done.out
    assert "pkill -KILL" in lab.hosts[0].called


def test_running_instances_of_all_clusters_are_listed(lab, ec2):
    assert ec2("launch", "--yes", "--name", "second", "--n-workers", "1").code == 0
    assert ec2("launch", "--yes", "--owner", "other", "--n-workers", "1").code == 0
    records = ec2("list_running_instances", "--json").record
    assert [record["cluster"] for record in records] == ["second", "second", "test", "test"]
    assert "4 running in us-east-1, owner user/moto" in ec2("list_running_instances").out


def test_ssh_runs_a_command_and_passes_its_exit_code_on(lab):
    lab.show_keys()
    done = lab("ssh", "--", "echo $HOME; exit 3")
    assert done.code == 3
    assert done.out == f"{lab.hosts[0].home}\n"
    done = lab("ssh", "deeplearning-worker2", "--", "echo $HOME")
    assert done.out == f"{lab.hosts[1].home}\n"
    assert lab("ssh", "all", "--", "true").code == 2


def test_train_runs_on_the_master_over_all_hosts(lab):
    lab.show_keys()
    script = '#!/bin/bash\nprintf "%s\\n" "$@"\nexit 6\n'
    (lab.hosts[0].home / "atomo").mkdir()
    (lab.hosts[1].home / "atomo").mkdir()
    (lab.hosts[0].home / "atomo/run_pytorch.sh").write_text(script)
    share = ("--base-out-dir", str(lab.folder / "share"))
    words = ("--pre-commands", "touch before", "--nfs-ip-address", "10.0.0.1", *share)
    done = lab("train", *words, "--", "--network", "LeNet", "--code", "svd(rank=3)")
    assert done.code == 6
    first, *said = done.out.splitlines()
    folder = first.removeprefix("job 1 trains in ")
    assert folder.startswith(f"{lab.folder}/share/job-1-")
    assert said[:6] == ["--n", "2", "--hostfile", "hosts_address", "--train-dir", folder]
    assert "--mpi-args=--mca btl_tcp_if_include 172.31.0.0/20" in said[6]
    assert said[7:] == ["--network", "LeNet", "--code", "svd(rank=3)"]
    assert all((host.home / "atomo/before").exists() for host in lab.hosts)
    lab.cloud.moto.client().terminate_instances(InstanceIds=[lab.records[1]["id"]])
    again = lab("train", "--", "--n", "1")
    assert "--n\n1\n" in again.out


def test_hosts_that_go_while_training_are_named(lab):
    lab.show_keys()
    (lab.hosts[0].home / "atomo").mkdir()
    marker = lab.folder / "gone"
    script = f"#!/bin/bash\necho training\ntouch {marker}\nexit 5\n"
    (lab.hosts[0].home / "atomo/run_pytorch.sh").write_text(script)

    def taken_back(words, forward):
        if marker.exists():
            lab.cloud.moto.client().terminate_instances(InstanceIds=[lab.records[1]["id"]])

    lab.cloud.on("DescribeInstances", taken_back, times=9)
    done = lab("train")
    assert done.code == 5
    assert (
        f"1 hosts are gone ({lab.records[1]['id']}); `launch` and `bootstrap` replace" in done.out
    )


def test_a_cluster_without_a_master_is_named(ec2, cloud):
    for command in ("bootstrap", "train", "ssh", "kill_python", "get_hosts", "jobs", "stop 1"):
        done = ec2(*command.split())
        assert done.code == 10
        assert "cluster test has no running master; `launch` starts it" in done.err
