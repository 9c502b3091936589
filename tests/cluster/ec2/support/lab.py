"""A cluster whose hosts are moto's instances, reached through real sshds here."""

import getpass

from cluster.ec2.support.sshd import Host, make_key, ssh_config

from atomo_cluster.ec2.aws.tags import CLUSTER, HOURS, OWNER, ROLE


def banner(public):
    """Returns the text that cloud-init prints on the console."""
    key = " ".join(public.split()[:2])
    return (
        "[   12.3] cloud-init: #####\r\n-----BEGIN SSH HOST KEY KEYS-----\r\n"
        f"{key} root@ip-172-31-0-4\r\n-----END SSH HOST KEY KEYS-----\r\nlogin:"
    )


KINDS = ("instance", "volume")


def start(cloud, role, spot=False, type="m5.large"):
    """Launches a host as `launch` does, without its checks, which take longer; its identifier."""
    tags = {CLUSTER: "test", OWNER: "user/moto", ROLE: role, HOURS: "8"}
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    market = {"InstanceMarketOptions": {"MarketType": "spot"}} if spot else {}
    disk = {"VolumeSize": 100, "VolumeType": "gp3", "DeleteOnTermination": True}
    made = cloud.moto.client().run_instances(
        **market, ImageId="ami-785db401", MinCount=1, MaxCount=1, InstanceType=type,
        Placement={"AvailabilityZone": "us-east-1a"},
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": disk}],
        TagSpecifications=[{"ResourceType": kind, "Tags": listed} for kind in KINDS],
    )  # fmt: skip
    return made["Instances"][0]["InstanceId"]


class Lab:
    """A cluster, whose hosts are sshds here."""

    def __init__(self, ec2, cloud, folder):
        self.ec2, self.cloud, self.folder = ec2, cloud, folder
        self.options = ["--ssh-username", getpass.getuser(), "--ssh-config", str(folder / "config")]
        self.options += ["--connect-timeout", "5"]
        for role in ("master", "worker"):
            start(cloud, role)
        self.records = ec2("status", "--json").record["hosts"]
        (folder / "state/test").mkdir(parents=True)
        public = make_key(folder / "state/test/id_ed25519")
        self.hosts = [Host(folder / record["id"], public) for record in self.records]
        self.ports = {record["public_ip"]: host.port
                      for record, host in zip(self.records, self.hosts, strict=True)}  # fmt: skip
        self.lead(self.ports)

    def lead(self, ports):
        ssh_config(self.folder / "config", ports)

    def show_keys(self):
        """Lets the consoles show the host keys."""
        for record, host in zip(self.records, self.hosts, strict=True):
            self.cloud.consoles[record["id"]] = banner(host.public)

    def __call__(self, command, *words, answer=""):
        ours, theirs = list(words), []
        if "--" in ours:
            at = ours.index("--")
            ours, theirs = ours[:at], ours[at:]
        everything = [command, *ours, "--n-workers", "1", *self.options, *theirs]
        return self.ec2(*everything, answer=answer)

    @property
    def known_hosts(self):
        path = self.folder / "state/test/known_hosts"
        return path.read_text() if path.exists() else ""
