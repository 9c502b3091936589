"""The configuration: valid and invalid values, and the error messages."""

import dataclasses

import pytest
import yaml
from cluster.ec2.support.cloud import write_cluster

from atomo_cluster.ec2.cli import COMMANDS, main
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.yaml_file import load, template
from atomo_cluster.errors import RemoteError

PUBLISHED = {
    *("name", "key_name", "n_masters", "n_workers", "method", "region", "availability_zone"),
    *("master_type", "worker_type", "image_id", "spot_price", "ssh_username", "path_to_keyfile"),
    *("nfs_ip_address", "nfs_mount_point", "base_out_dir", "setup_commands"),
    *("master_pre_commands", "pre_commands", "train_commands", "num_replicas_to_aggregate"),
}


def test_the_published_keys_are_there():
    assert {field.name for field in dataclasses.fields(Cluster)} >= PUBLISHED


@pytest.mark.parametrize("verb", ["run_mxnet_grid_search", "run_mxnet_loss_curve"])
def test_a_published_command_that_is_gone_names_its_successor(capsys, verb):
    assert main([verb]) == 2
    told = capsys.readouterr().err
    assert f"unknown command '{verb}'; `train " in told
    assert "known:" not in told


@pytest.mark.slow
def test_init_writes_every_key_explained(ec2, folder):
    (folder / "cluster.yaml").unlink()
    assert ec2("init").code == 0
    text = (folder / "cluster.yaml").read_text()
    for field in dataclasses.fields(Cluster):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{field.name}:")]
        assert f"# {field.metadata['help']}" in line
    assert load(None, {}) == Cluster()
    again = ec2("init")
    assert again.code == 2
    assert "cluster.yaml exists already; --force overwrites it" in again.err
    assert ec2("init", "--force").code == 0
    assert ec2("init", "other.yaml", "--json").record == {"file": "other.yaml"}


def test_the_template_is_plain_yaml():
    assert list(yaml.safe_load(template())) == [f.name for f in dataclasses.fields(Cluster)]


def test_the_command_line_wins_over_the_file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text('name: a\nn_workers: 7\nspot_price: "0.16"\nsetup_commands: [ls, "echo x"]\n')
    cluster = load(path, {"n_workers": 9})
    assert (cluster.name, cluster.n_workers, cluster.spot_price) == ("a", 9, 0.16)
    assert cluster.setup_commands == ("ls", "echo x")


@pytest.mark.parametrize(
    ("word", "value"), [("yes", "yes"), ("false", "no"), ("auto", "auto"), ("'no'", "no")]
)
def test_ends_by_aws_are_a_word_that_yaml_may_read_as_a_bool(tmp_path, word, value):
    path = tmp_path / "c.yaml"
    path.write_text(f"name: a\naws_end: {word}\n")
    assert load(path, {}).aws_end == value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("n_worker: 3", "unknown key 'n_worker'; did you mean 'n_workers'? known: name, owner"),
        ("n_workers: many", "n_workers: 'many' is not a whole number"),
        ("n_workers: 0", "n_workers must be from 1 to 1000, got 0"),
        ("n_workers: [1, 2]", "n_workers: [1, 2] is not a whole number"),
        ("n_masters: 2", "n_masters must be from 1 to 1, got 2"),
        ("max_hours: 10000", "max_hours must be from 0.1 to 720, got 10000"),
        ("max_hours: .nan", "max_hours must be from 0.1 to 720, got nan"),
        ("spot_price: -1", "spot_price must be from 0.0001 to 1000, got -1"),
        ("method: spott", "unknown method 'spott'; did you mean 'spot'?"),
        ("worker_method: bid", "unknown worker_method 'bid'; "),
        ("worker_method: on-demand\nspot_price: 1", "spot_price 1.0 needs method spot"),
        ("zones: eu-west-1a", "zones 'eu-west-1a' is not in region 'us-east-1'; write e.g."),
        (
            "zones: us-east-1a\navailability_zone: us-east-1b",
            "or zones, not both",
        ),
        ("zones: us-east-1a\nsubnet_id: subnet-1", "subnet_id is in one zone; give one of the two"),
        ("name: no", "name: False is not text; quote it"),
        ("name: 'my cluster'", "name 'my cluster': a letter, then up to 39 letters"),
        ("region: oregon", "region 'oregon': a region such as us-west-2"),
        ("availability_zone: eu-west-1a", "is not in region 'us-east-1'; write e.g. us-east-1a"),
        ("image_id: ubuntu", "image_id 'ubuntu': latest, baked, or an image such as ami-0abc"),
        ("ssh_from: home", "ssh_from 'home': "),
        ("ssh_from: 0.0.0.0/0", "would let 4,294,967,296 addresses try ssh"),
        ("efa: perhaps", "efa: 'perhaps' is neither yes nor no"),
        ("aws_end: perhaps", "aws_end 'perhaps': auto, yes or no"),
        ("key_name: k", "key_name 'k' needs path_to_keyfile"),
        ("nfs_mount_point: /", "nfs_mount_point '/': an absolute path, two levels deep"),
        ("remote_dir: ../x", "remote_dir '../x': one folder name"),
        ("remote_dir: '..'", "remote_dir '..': a path without . and .. in it"),
        ("nfs_mount_point: /home/../etc", "nfs_mount_point '/home/../etc': a path without"),
        ("base_out_dir: ../../x", "base_out_dir '../../x': a path without"),
        ("state_dir: ~/../x", "state_dir '~/../x': a path without"),
        ("name: a\nn_workers: 1\nname: b", "cluster.yaml: name is given twice; keep one"),
        ("ssh_username: 'a b'", "ssh_username 'a b': a user name such as ubuntu"),
        ("method: on-demand\nspot_price: 1", "spot_price 1.0 needs method spot"),
        ("- a\n- b", "it must be lines of `key: value`"),
        ("a: [", "this is not YAML"),
        ("pre_commands: [1]", "pre_commands: [1] is not a list of lines"),
    ],
)
def test_a_bad_setting_is_refused_before_aws_is_asked(ec2, cloud, folder, text, told):
    (folder / "cluster.yaml").write_text(text + "\n")
    done = ec2("launch", "--yes")
    assert done.code == 2
    assert told in done.err
    assert done.err.startswith("pytorch_ec2.py launch: ")
    assert "Traceback" not in done.err
    assert not cloud.calls


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("lunch", "unknown command 'lunch'; did you mean 'launch'? known: init"),
        ("launch --n-worker 3", "unknown option '--n-worker'; did you mean '--n-workers'?"),
        ("launch --n-workers=x", "'x' is not a whole number"),
        ("launch --config none.yaml", "--config none.yaml: "),
        ("status -- x", "`status` takes nothing after `--`, got 'x'"),
        ("run_command all", "the following arguments are required: COMMAND"),
        ("setup_nfs", "nfs_ip_address is empty"),
        ("ssh --hostfile none", "--hostfile none: "),
        ("clean_launch_and_run --detach --then-shutdown", "--detach leaves the training running"),
        (
            "clean_launch_and_run --supervise yes --master-method on-demand --then-shutdown",
            "supervise: yes ends the hosts after the job",
        ),
        ("plan --supervise yes --method spot", "nobody replaces the master"),
        ("plan --results s3://box/x", "needs supervise: yes"),
        ("plan --results here", "s3://BUCKET/PREFIX"),
    ],
)
def test_a_bad_command_line_is_refused(ec2, cloud, words, told):
    done = ec2(*words.split())
    assert done.code == 2
    assert told in done.err
    assert not cloud.calls


@pytest.mark.slow
def test_without_a_file_there_must_be_a_name(ec2, folder, cloud):
    (folder / "cluster.yaml").unlink()
    done = ec2("shutdown", "--yes")
    assert done.code == 2
    assert "there is no cluster.yaml here and no --name; `pytorch_ec2.py init` writes one" in (
        done.err
    )
    assert not cloud.calls
    assert ec2("shutdown", "--yes", "--name", "x").code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_and_exit_codes(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert f"  pytorch_ec2.py {command}" in text
    assert "exit codes: 0 done" in text
    assert "--json" in text


def test_the_help_of_run_command_has_its_exit_code(capsys):
    with pytest.raises(SystemExit):
        main(["run_command", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"ends with {RemoteError.exit_code} if it failed on one" in text
    assert "`train`, `attach` and `ssh` end with the exit code of what they ran" in text


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    assert main([]) == 2
    text = capsys.readouterr().out
    assert all(f"\n  {command} " in text for command in COMMANDS)


@pytest.mark.slow
def test_settings_of_the_file_reach_the_launch(ec2, folder):
    write_cluster(folder / "other.yaml", n_workers=1, state_dir=str(folder / "s"))
    plan = ec2("plan", "--config", "other.yaml", "--json").record
    assert [group["count"] for group in plan["launch"]] == [1, 1]
