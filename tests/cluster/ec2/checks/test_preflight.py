"""Every preflight check fails when it should, and names the fix."""

import pytest
from cluster.ec2.support.cloud import as_json, everything, refusal

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.hosts.shared_folder import SharedFolder, mount_parameters, shared_folder_of
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import ConfigError

pytestmark = pytest.mark.slow

STANDARD = "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
G = "Running On-Demand G and VT instances"
SPOT_STANDARD = "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"


def findings(result):
    """Returns the outcome and the text of each check; a command that failed has `records`."""
    records = result.record["records"] if result.code else result.record
    return {record["check"]: (record["outcome"], record["text"]) for record in records}


def test_all_is_well(ec2, cloud):
    cloud.quotas = {STANDARD: 64, G: 0}
    done = ec2("validate", "--json")
    assert done.code == 0, done.err
    found = findings(done)
    assert {outcome for outcome, _ in found.values()} == {"ok"}
    assert found["quota"][1] == f"{STANDARD}: 0 + 6 of 64 vCPUs"
    assert "ssh from 203.0.113.7/32" in found["security group"][1]


def test_what_aws_does_not_answer_is_unknown_and_stops_nothing(ec2, cloud):
    done = ec2("validate", "--json")
    assert done.code == 0
    assert findings(done)["quota"][0] == "unknown"
    assert "unknown  quota: AWS does not say" in ec2("launch", "--yes").out


@pytest.mark.parametrize("action", ["DescribeImages", "DescribeSubnets", "DescribeInstanceTypes"])
def test_what_is_essential_must_be_known(ec2, cloud, action):
    cloud.on(action, refusal("UnauthorizedOperation", "You may not"), times=99)
    done = ec2("validate", "--json")
    assert done.code == 12
    assert "unknown" in {outcome for outcome, _ in findings(done).values()}
    assert "AWS does not say" in done.err
    assert "`iam` prints a policy that has it" in done.err


@pytest.mark.parametrize(
    ("words", "check", "told"),
    [
        ("--worker-type m5.lrge", "instance types", "did you mean 'm5.large'?"),
        ("--worker-type zz.large", "instance types", "nor any of family 'zz'"),
        ("--availability-zone us-east-1z", "zone",
         "us-east-1z does not have all of m5.large; these do: us-east-1a"),
        ("--image-id ami-12345678", "image", "InvalidAMIID.NotFound"),
        ("--worker-type m6g.large", "image",
         "is for x86_64, and m6g.large is arm64; say image_id: latest"),
        ("--subnet-id subnet-123", "subnet", "InvalidSubnetID.NotFound"),
        ("--placement-group yes --worker-type t3.micro", "placement",
         "t3.micro cannot be in a cluster placement group"),
        ("--efa yes", "placement", "m5.large has no Elastic Fabric Adapter"),
        ("--ssh-from= --check-ip-url=http://127.0.0.1:9", "security group",
         "give it as --ssh-from"),
    ],
)  # fmt: skip
def test_a_check_fails_and_says_what_to_do(ec2, cloud, words, check, told):
    before = everything(cloud)
    done = ec2("validate", "--json", *words.split())
    assert done.code == 12
    outcome, text = findings(done)[check]
    assert outcome == "failed"
    assert told in text
    assert told in done.err
    assert ec2("launch", "--yes", *words.split()).code in (2, 10, 12)
    assert everything(cloud) == before


def test_a_quota_that_does_not_suffice_stops_the_launch(ec2, cloud):
    before = everything(cloud)
    cloud.quotas = {STANDARD: 5, SPOT_STANDARD: 64}
    done = ec2("launch", "--yes")
    assert done.code == 12
    assert f"{STANDARD}: 5 vCPUs, 0 in use, 6 more wanted; ask for more under Service Quotas" in (
        done.err
    )
    assert everything(cloud) == before
    assert ec2("launch", "--yes", "--method", "spot").code == 0  # which has a quota of its own


def test_each_way_of_buying_has_a_quota_of_its_own(ec2, cloud):
    words = ("validate", "--json", "--method", "", "--worker-method", "spot")
    cloud.quotas = {STANDARD: 2, SPOT_STANDARD: 4}
    told = findings(ec2(*words))["quota"][1]
    assert told == f"{STANDARD}: 0 + 2 of 2 vCPUs; {SPOT_STANDARD}: 0 + 4 of 4 vCPUs"
    cloud.quotas = {STANDARD: 2, SPOT_STANDARD: 3}
    assert f"{SPOT_STANDARD}: 3 vCPUs, 0 in use, 4 more wanted" in ec2(*words).err


def test_hosts_of_others_count_against_the_quota(ec2, cloud):
    cloud.moto.client().run_instances(
        ImageId="ami-785db401", MinCount=2, MaxCount=2, InstanceType="c5.xlarge"
    )
    cloud.quotas = {STANDARD: 13}
    done = ec2("validate")
    assert done.code == 12
    assert "13 vCPUs, 8 in use, 6 more wanted" in done.err


def test_a_spot_price_below_the_market_fails(ec2, cloud, monkeypatch):
    market = {("us-east-1a", "m5.large"): 0.05}
    monkeypatch.setattr("atomo_cluster.ec2.checks.hosts.spot_prices", lambda *_: market)
    done = ec2("validate", "--method", "spot", "--spot-price", "0.04")
    assert done.code == 12
    assert "m5.large costs $0.0500 an hour now, and spot_price is $0.0400; raise it" in done.err


def test_keys_must_match_be_there_and_be_private(ec2, cloud, tmp_path):
    client = cloud.moto.client()
    made = {name: client.create_key_pair(KeyName=name) for name in ("one", "two")}
    path = tmp_path / "key.pem"
    words = ("validate", "--key-name", "one", "--path-to-keyfile", str(path))
    assert f"{path} does not exist" in ec2(*words).err
    path.write_text(made["two"]["KeyMaterial"])
    path.chmod(0o644)
    assert f"may be read by others (mode 644), so ssh refuses it: chmod 600 {path}" in (
        ec2(*words).err
    )
    path.chmod(0o600)
    half = ec2("validate", "--path-to-keyfile", str(path))
    assert half.code == 12
    assert f"path_to_keyfile '{path}' needs key_name" in half.err
    done = ec2(*words)
    assert done.code == 12
    assert f"{path} is not the private half of 'one'" in done.err
    assert ec2("validate", "--key-name", "two", "--path-to-keyfile", str(path)).code == 0
    gone = ec2("validate", "--key-name", "three", "--path-to-keyfile", str(path))
    assert "region us-east-1 has no key pair 'three'" in gone.err


def test_a_key_that_was_made_elsewhere_is_missed(ec2, folder):
    assert ec2("launch", "--yes").code == 0
    (folder / "state/test/id_ed25519").unlink()
    done = ec2("validate")
    assert done.code == 12
    assert "the cluster's key was made on another machine" in done.err


def test_a_group_of_the_same_name_that_is_not_ours_is_not_taken(ec2, cloud):
    assert ec2("launch", "--yes").code == 0
    (pair,) = everything(cloud)["keys"]
    assert ec2("shutdown", "--yes").code == 0
    cloud.moto.client().create_security_group(GroupName=pair, Description="somebody else's")
    done = ec2("validate")
    assert done.code == 12
    assert f"is called {pair} and lacks the cluster's tags; delete it" in done.err


@pytest.fixture
def efs(cloud):
    """Returns a mount target in us-east-1a: its address and its security group."""
    client, ec2 = cloud.moto.client("efs"), cloud.moto.client()
    zone = [{"Name": "availability-zone", "Values": ["us-east-1a"]}]
    subnet = ec2.describe_subnets(Filters=zone)["Subnets"][0]["SubnetId"]
    group = ec2.create_security_group(GroupName="efs", Description="efs")["GroupId"]
    system = client.create_file_system(CreationToken="x")["FileSystemId"]
    target = client.create_mount_target(
        FileSystemId=system, SubnetId=subnet, SecurityGroups=[group]
    )
    return target["IpAddress"], group


def test_the_shared_folder_must_let_the_hosts_in(ec2, cloud, efs):
    address, group = efs
    words = ("validate", "--nfs-ip-address", address, "--json")
    done = ec2(*words)
    assert done.code == 12
    assert f"authorize-security-group-ingress --group-id {group} --protocol tcp --port 2049" in (
        done.err
    )
    cloud.moto.client().authorize_security_group_ingress(
        GroupId=group, IpProtocol="tcp", FromPort=2049, ToPort=2049, CidrIp="172.31.0.0/16"
    )
    done = ec2(*words)
    assert done.code == 0, done.err
    assert findings(done)["shared folder"][1].startswith("fs-")
    elsewhere = ec2(*words, "--availability-zone", "us-east-1b")
    assert elsewhere.code == 12
    assert "traffic between zones costs; set availability_zone: us-east-1a" in elsewhere.err


@pytest.mark.slow
def test_a_file_system_that_is_named_must_let_the_hosts_in(ec2, cloud, efs):
    _, group = efs
    (system,) = cloud.moto.client("efs").describe_file_systems()["FileSystems"]
    words = ("validate", "--json", "--availability-zone", "us-east-1a", "--storage")
    shut = ec2(*words, f"efs:{system['FileSystemId']}")
    assert f"--group-id {group} --protocol tcp --port 2049" in shut.err
    assert (
        "no mount target in us-east-1b (it has: us-east-1a)"
        in ec2(*words, f"efs:{system['FileSystemId']}", "--availability-zone", "us-east-1b").err
    )
    assert "has no such file system" in ec2(*words, "efs:fs-00000000").err
    assert ec2(*words, "efs:fs-00000000", "--nfs-ip-address", "10.0.0.1").code == 2
    interface = cloud.moto.client().create_network_interface(
        SubnetId=ec2("plan", "--json").record["subnet"], Groups=[group]
    )["NetworkInterface"]  # fmt: skip
    lustre = {"FileSystemId": "fs-01234567", "FileSystemType": "LUSTRE", "DNSName": "x.fsx",
              "LustreConfiguration": {"MountName": "abc"}, "SubnetIds": [interface["SubnetId"]],
              "NetworkInterfaceIds": [interface["NetworkInterfaceId"]]}  # fmt: skip
    cloud.on("DescribeFileSystems", as_json({"FileSystems": [lustre]}), times=2)
    shut = ec2(*words, "fsx:fs-01234567")
    assert f"--group-id {group} --protocol tcp --port 988" in shut.err, findings(shut)[
        "shared folder"
    ]
    cloud.moto.client().authorize_security_group_ingress(
        GroupId=group, IpProtocol="tcp", FromPort=988, ToPort=2049, CidrIp="172.31.0.0/16"
    )
    cloud.on("DescribeFileSystems", as_json({"FileSystems": [lustre]}), times=2)
    fine = findings(ec2(*words, "fsx:fs-01234567"))["shared folder"]
    assert fine == ("ok", "fsx:fs-01234567 (LUSTRE) in us-east-1a")
    assert findings(ec2(*words, f"efs:{system['FileSystemId']}"))["shared folder"][0] == "ok"


def test_what_is_mounted_of_a_file_system():
    one = {"FileSystemId": "fs-01234567", "DNSName": "fs-01234567.fsx"}
    lustre = {**one, "FileSystemType": "LUSTRE", "LustreConfiguration": {"MountName": "abc"}}
    assert mount_parameters(lustre) == SharedFolder("lustre", "fs-01234567.fsx@tcp:/abc")
    assert mount_parameters({**one, "FileSystemType": "OPENZFS"}) == SharedFolder(
        "nfs", "fs-01234567.fsx:/fsx"
    )
    with pytest.raises(ConfigError, match="is of type WINDOWS"):
        mount_parameters({**one, "FileSystemType": "WINDOWS"})
    cluster = Cluster(storage="efs:fs-01234567")
    efs = shared_folder_of(Aws("us-east-1"), cluster)
    assert efs == SharedFolder("nfs", "fs-01234567.efs.us-east-1.amazonaws.com:/")
    assert cluster.out_dir == "/home/ubuntu/shared/atomo"
    assert cluster.outlives


def test_another_nfs_server_is_unknown(ec2):
    outcome, text = findings(ec2("validate", "--nfs-ip-address", "10.1.2.3", "--json"))[
        "shared folder"
    ]
    assert outcome == "unknown"
    assert "EFS has no mount target with the address 10.1.2.3" in text


def test_bad_credentials_fail(ec2, cloud):
    cloud.on("GetCallerIdentity", refusal("InvalidClientTokenId", "bad token"), times=2)
    done = ec2("validate", "--owner", "me")
    assert done.code == 12
    assert "the credentials are not valid" in done.err
