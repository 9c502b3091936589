"""ssh through AWS Session Manager: no open port, and IAM controls who may connect."""

import shlex
import shutil
from typing import Final

from atomo_cluster.errors import ConfigError

__all__ = ["CORE", "proxy_command", "require_programs"]

# The rights that the agent of a host needs.
CORE: Final = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
GUIDE: Final = "https://docs.aws.amazon.com/systems-manager/latest/userguide/"
PROGRAMS: Final = {
    "aws": "the AWS CLI, version 2",
    "session-manager-plugin": f"{GUIDE}session-manager-working-with-install-plugin.html",
}


def require_programs() -> None:
    """Raises ConfigError if a local program that sessions need is missing."""
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            raise ConfigError(
                f"connect: ssm needs {program} here, and it is not installed: {package}"
            )


def proxy_command(region: str, endpoint_url: str | None) -> str:
    """Returns the ProxyCommand of ssh, for hosts addressed by instance identifiers.

    >>> proxy_command("us-east-1", None).split()[:5]
    ['aws', 'ssm', 'start-session', '--region', 'us-east-1']
    """
    line = ["aws", "ssm", "start-session", "--region", region, "--document-name",
            "AWS-StartSSHSession", "--parameters", "portNumber=%p"]  # fmt: skip
    line += ["--endpoint-url", endpoint_url] if endpoint_url else []
    return f"{shlex.join(line)} --target %h"
