"""The scripts in tools/: thin entries that work from a clone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atomo_cluster.ec2.hosts.scripts import SCRIPTS as SCRIPTS_ON_HOSTS

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "tools"
SCRIPTS = [
    *(TOOLS / f"{name}.sh" for name in ("local_script", "remote_script", "pre_run")),
    *sorted(SCRIPTS_ON_HOSTS.glob("*.sh")),
]


def run(*words, **environment):
    around = {**os.environ, **environment}
    return subprocess.run(
        words, env=around, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="NOT TESTED: no shellcheck here")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    done = run("shellcheck", "-x", "-P", str(ROOT), str(script))
    assert done.returncode == 0, done.stdout


def test_the_entry_runs_from_anywhere(tmp_path):
    done = run(sys.executable, str(TOOLS / "pytorch_ec2.py"), "--help")
    assert done.returncode == 0, done.stderr
    assert "usage: pytorch_ec2.py COMMAND" in done.stdout


def test_the_entry_finds_the_environment_of_the_clone(tmp_path):
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text('#!/bin/bash\necho "ours: $*"\n')
    python.chmod(0o755)
    entry = str(TOOLS / "pytorch_ec2.py")
    done = run(sys.executable, "-I", "-S", entry, "plan", "--json", ATOMO_VENV=str(tmp_path))
    assert done.stdout == f"ours: {entry} plan --json\n"
    missing = run(sys.executable, "-I", "-S", entry, ATOMO_VENV=str(tmp_path / "none"))
    assert missing.returncode == 2
    told = f"boto3, yaml, rich: missing; `{sys.executable} -m pip install boto3 pyyaml rich` brings"
    assert f"pytorch_ec2.py: {told} them\n" == missing.stderr


@pytest.mark.slow
@pytest.mark.parametrize("package", ["botocore.config", "yaml"])
def test_a_missing_package_is_named(ec2, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    done = ec2("plan")
    assert done.code == 2
    assert f"is missing; `{sys.executable} -m pip install " in done.err


@pytest.fixture
def environment(tmp_path):
    """Returns an environment that counts as installed, whose Python is another program."""

    def make(program, extras=""):
        python = tmp_path / "venv/bin/python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f"#!/bin/bash\n{program}\n")
        python.chmod(0o755)
        wanted = run("bash", "-c", f"cksum <{ROOT}/pyproject.toml").stdout.strip()
        (tmp_path / "venv/installed").write_text(f"{wanted} {extras}\n")
        return {"ATOMO_VENV": str(tmp_path / "venv")}

    return make


def test_an_environment_that_is_lent_is_never_installed_into(environment, tmp_path):
    around = environment(f"touch {tmp_path}/called") | {"ATOMO_INSTALL": "no", "ATOMO_EXTRAS": ""}
    (tmp_path / "venv/installed").write_text("of another day\n")
    done = run("bash", str(TOOLS / "pre_run.sh"), **around)
    assert done.returncode == 2
    assert "venv is not what pyproject.toml asks for, and ATOMO_INSTALL=no" in done.stderr
    assert not (tmp_path / "called").exists()


def test_local_script_bootstraps(environment):
    around = environment('echo "$@"', extras="ec2")
    done = run("bash", str(TOOLS / "local_script.sh"), "203.0.113.7", "--wait", "5", **around)
    entry = f"{ROOT}/tools/pytorch_ec2.py"
    assert done.stdout == f"{entry} bootstrap --master 203.0.113.7 --wait 5\n", done.stderr
    for words in ((), ("--help",)):
        usage = run("bash", str(TOOLS / "local_script.sh"), *words, **around)
        assert usage.returncode == 2
        assert "tools/local_script.sh PS_IP" in usage.stdout


def test_what_get_hosts_writes_is_not_for_git():
    names = [f"clusters/lab/{name}" for name in ("hosts", "hosts_alias", "hosts_address")]
    ignored = run("git", "-C", str(ROOT), "check-ignore", "--no-index", *names)
    assert ignored.stdout.split() == names


def test_remote_script_explains_itself():
    done = run("bash", str(TOOLS / "remote_script.sh"))
    assert done.returncode == 2
    assert "remote_script.sh nfs ADDRESS MOUNT OUT" in done.stdout


def test_lustre_is_mounted_where_nothing_is(tmp_path):
    programs = {"sudo": 'shift; exec "$@"', "mount": f'echo "$@" >>{tmp_path}/called',
                "findmnt": "exit 1", "mount.lustre": ""}  # fmt: skip
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    words = ("lustre", "fs-1.fsx@tcp:/abc", str(tmp_path / "fsx"), str(tmp_path / "fsx/out"))
    around = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for code in (0, 1):  # the second mount would hide the files
        done = run("bash", str(TOOLS / "remote_script.sh"), *words, **around)
        assert done.returncode == code, done.stderr
    assert (tmp_path / "called").read_text() == (
        f"-t lustre -o relatime,flock fs-1.fsx@tcp:/abc {tmp_path}/fsx\n"
    )
    assert "is not empty: mounting there would hide what is in it" in done.stderr


def with_gpus(folder, count):
    """Returns the environment of a host on which nvidia-smi lists `count` GPUs."""
    smi = folder / "nvidia-smi"
    lines = "\n".join(f"echo GPU {number}: Tesla T4" for number in range(count))
    smi.write_text(f"#!/bin/bash\n{lines}\n")
    smi.chmod(0o755)
    # The extras of the test environment are not those of the host.
    return {"PATH": f"{folder}:{os.environ['PATH']}", "ATOMO_EXTRAS": ""}


def test_pre_run_on_a_host_without_gpus(environment, tmp_path):
    around = environment("exit 9") | with_gpus(tmp_path, 0)
    done = run("bash", str(TOOLS / "pre_run.sh"), **around)
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr
    (tmp_path / "nvidia-smi").write_text("#!/bin/bash\necho NVIDIA-SMI: no driver\nexit 9\n")
    missing = run("bash", str(TOOLS / "pre_run.sh"), "--gpu", "4", **around)
    assert missing.returncode == 3
    assert "should have 4 GPUs, and nvidia-smi lists 0 (no driver): take an image" in missing.stderr
    broken = run("bash", str(TOOLS / "pre_run.sh"), "--gpu", "4", **with_gpus(tmp_path, 3))
    assert "should have 4 GPUs, and nvidia-smi lists 3" in broken.stderr


@pytest.mark.long
def test_pre_run_checks_that_pytorch_sees_the_gpus(environment, tmp_path):
    import torch

    around = environment(f'exec {sys.executable} "$@"') | with_gpus(tmp_path, 2)
    done = run("bash", str(TOOLS / "pre_run.sh"), "--gpu", "2", **around, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert f"PyTorch {torch.__version__} sees no CUDA device" in done.stderr
    fine = environment("cat >/dev/null; echo sees 2") | with_gpus(tmp_path, 2)
    assert run("bash", str(TOOLS / "pre_run.sh"), "--gpu", "2", **fine).stdout == "sees 2\nready\n"
