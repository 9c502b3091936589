"""EC2's commands where Atomo is installed without its checkout."""

import pytest
from cluster.ec2.conftest import Ec2
from support.wheels import Installed

pytestmark = pytest.mark.slow


def test_the_command_of_the_wheel_plans(ec2: Ec2, installed: Installed, folder):
    config = str(folder / "cluster.yaml")
    result = ec2("plan", "--config", config)
    assert installed.run("pytorch_ec2.py", "plan", "--config", config) == result.out
    assert "2 workers" in result.out
