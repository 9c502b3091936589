"""The only access to AWS: calls with retries, and errors that name a remedy."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from io import BufferedIOBase
from typing import Any, Final, NoReturn, final
from urllib.parse import urlsplit

from atomo_cluster.errors import CloudError, ConfigError

__all__ = ["CAPACITY", "Aws", "is_ambiguous"]

ATTEMPTS: Final = 8  # with back-off: about a minute of throttling is borne
CAPACITY: Final = ("InsufficientInstanceCapacity", "InsufficientHostCapacity")
ADVISORY: Final = ("pricing", "service-quotas", "ssm")  # a launch does not need their answers
OWN_HOSTS: Final = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
UNREACHED: Final = ("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError")
HOME: Final = "us-east-1"  # the only region that serves prices, those of all regions
DENIED: Final = "the identity lacks this permission; `iam` prints a policy that has it"
AGAIN: Final = "AWS failed, or its answer was lost: look at `status`, then try again"
HINTS: Final[Mapping[str, str]] = {
    "InsufficientInstanceCapacity": "AWS has too few of these right now: try another zone or type, "
    "alternative_types, or later",
    "UnfulfillableCapacity": "AWS has too few of these right now: try another zone or type, "
    "alternative_types, or later",
    "VcpuLimitExceeded": "ask for a higher quota (`validate` names it), or launch fewer",
    "MaxSpotInstanceCountExceeded": "ask for a higher spot quota (`validate` names it)",
    "SpotMaxPriceTooLow": "raise spot_price, or leave it empty",
    "UnauthorizedOperation": DENIED,
    "AccessDenied": DENIED,
    "AccessDeniedException": DENIED,
    "AuthFailure": "the credentials are not valid: see `aws sts get-caller-identity`",
    "InvalidClientTokenId": "the credentials are not valid: see `aws sts get-caller-identity`",
    "ExpiredToken": "sign in again, e.g. `aws sso login`",
    "RequestExpired": "sign in again, and look at this machine's clock",
    "RequestLimitExceeded": f"still throttled after {ATTEMPTS} attempts: wait a few minutes",
    "NoCredentialsError": "set AWS_PROFILE, or run `aws configure` or `aws sso login`",
    "EndpointConnectionError": "is there a network, and does the region exist?",
    "IncompleteSignature": AGAIN,
    "InternalError": AGAIN,
    "InternalFailure": AGAIN,
    "ServiceFailure": AGAIN,
    "InternalServerException": AGAIN,
    "Unavailable": AGAIN,
    "ServiceUnavailable": AGAIN,
    "ReadTimeoutError": AGAIN,
    "ConnectTimeoutError": AGAIN,
    "ConnectionClosedError": AGAIN,
    "ResponseParserError": AGAIN,
    "WaiterError": "it takes longer than usual, or failed: `status` shows the state",
    "OptInRequired": "the account has not subscribed to this service or region",
    "InvalidSubnetID.NotFound": "subnet_id names none in this region",
}
DRY: Final = "DryRunOperation"
LONGEST: Final = 200  # of a message, characters


@final
class Aws:
    """Calls to AWS in one region. Throttled calls are retried with increasing delays.

    `AWS_ENDPOINT_URL` and the other variables of boto3 apply; `endpoint_url` overrides them.
    """

    def __init__(
        self,
        region: str,
        endpoint_url: str | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.region = region
        self._report = report
        self._warnings: set[str] = set()
        self._endpoint_url = endpoint_url
        self._clients: dict[str, Any] = {}
        self._constants: dict[str, list[Any]] = {}

    @property
    def endpoint(self) -> str:
        """The endpoint of EC2 where it is not AWS's own, as an emulator's; empty: AWS itself."""
        url = str(self._client("ec2").meta.endpoint_url)
        return "" if (urlsplit(url).hostname or "").endswith(OWN_HOSTS) else url

    def warn(self, text: str) -> None:
        """Reports once what is odd and stops no command."""
        if text not in self._warnings:
            self._warnings.add(text)
            self._report(text)

    def call(self, action: str, **arguments: Any) -> dict[str, Any]:
        """Returns the response to a call such as `ec2.describe_instances`.

        Raises:
            CloudError: AWS refused or could not be reached; `code` is the error code of AWS.
        """
        service, operation = action.split(".")
        answer: dict[str, Any] = self._guarded(
            action, getattr(self._client(service), operation), arguments
        )
        return answer

    def pages(self, action: str, key: str, **arguments: Any) -> Iterator[Any]:
        """Yields the entries under `key` from all pages of a response."""
        service, operation = action.split(".")
        client = self._client(service)
        if not client.can_paginate(operation):
            yield from self.call(action, **arguments).get(key, [])
            return
        pages = iter(client.get_paginator(operation).paginate(**arguments))
        while (page := self._guarded(action, lambda: next(pages, None), {})) is not None:
            yield from page.get(key, [])

    def constant(self, action: str, key: str, **arguments: Any) -> list[Any]:
        """Returns the entries of `pages`, cached per command: for data that does not change."""
        request = json.dumps([action, arguments], sort_keys=True)
        if request not in self._constants:
            self._constants[request] = list(self.pages(action, key, **arguments))
        return self._constants[request]

    def wait(self, waiter: str, seconds_s: int, **arguments: Any) -> None:
        """Waits for a state of EC2 such as `instance_running`, polling every five seconds."""
        poll = {"Delay": 5, "MaxAttempts": max(1, seconds_s // 5)}
        waiting = self._client("ec2").get_waiter(waiter).wait
        action = f"ec2.describe_{waiter.partition('_')[0]}s ({waiter})"
        self._guarded(action, waiting, {**arguments, "WaiterConfig": poll})

    def transfer(self, how: str, path: str, bucket: str, key: str) -> None:
        """Uploads a file to S3 (`upload_file`), in parts if it is large."""
        from boto3.exceptions import S3UploadFailedError
        from boto3.s3.transfer import S3Transfer

        try:
            act = getattr(S3Transfer(self._client("s3")), how)
            self._guarded(f"s3.{how}", act, {"filename": path, "bucket": bucket, "key": key})
        except S3UploadFailedError as error:
            fail(f"s3.{how}", type(error).__name__, str(error), error)

    def drain(self, body: Any, out: BufferedIOBase, chunk: int) -> None:
        """Copies the body of an S3 response to `out`."""
        while data := self._guarded("s3.get_object", lambda: body.read(chunk), {}):
            out.write(data)

    def refusal(self, action: str, **arguments: Any) -> CloudError | None:
        """Returns the error that EC2's DryRun predicts for a call; None if it would succeed."""
        try:
            self.call(action, DryRun=True, **arguments)
        except CloudError as error:
            return None if error.code == DRY else error
        return None

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._made(service)
        return self._clients[service]

    def _made(self, service: str) -> Any:
        try:
            from botocore.config import Config
        except ModuleNotFoundError:
            raise ConfigError(
                f"boto3 is missing; `{sys.executable} -m pip install boto3` brings it"
            ) from None
        attempts = 2 if service in ADVISORY else ATTEMPTS
        patient = Config(
            retries={"mode": "standard", "total_max_attempts": attempts},
            connect_timeout=10,
            read_timeout=60,
        )
        region = HOME if service == "pricing" else self.region
        make: Callable[[], Any] = lambda: session().create_client(  # noqa: E731
            service, region_name=region, endpoint_url=self._endpoint_url, config=patient
        )
        made = self._guarded(f"{service}.connect", make, {})
        if service == "ec2":
            asked_again = "needs-retry.ec2.RunInstances"
            made.meta.events.register_first(
                asked_again, stop_capacity_retries, unique_id="atomo-spare"
            )
        return made

    def _guarded(self, action: str, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            return call(**arguments)
        except ClientError as error:
            details = error.response["Error"]
            fail(action, str(details.get("Code", "?")), str(details.get("Message", "")), error)
        except (BotoCoreError, ResponseParserError, ValueError) as error:
            name = type(error).__name__
            fail(action, name, str(error), error, self._endpoint_hint(name))

    def _endpoint_hint(self, code: str) -> str:
        """Names an endpoint that does not answer and is not AWS's own; empty: it is AWS's."""
        url = self._endpoint_url or os.environ.get("AWS_ENDPOINT_URL")
        if not url or code not in UNREACHED:
            return ""
        source = "--endpoint-url" if self._endpoint_url else "AWS_ENDPOINT_URL"
        return (f"{source} is {url}: where that was the emulator of a rehearsal, `unset "
                "AWS_ENDPOINT_URL` asks AWS itself")  # fmt: skip


@cache
def session() -> Any:
    """Returns the session that makes clients. It is cached, since it loads large API descriptions.

    The session is botocore's: boto3 loads much more, which only `transfer` needs.
    """
    from botocore.session import get_session

    return get_session()


def stop_capacity_retries(response: Any = None, **_: Any) -> None:
    """Turns off retries after capacity errors.

    EC2 reports missing capacity as a server error, which botocore would retry in vain.
    """
    if response is not None and response[1].get("Error", {}).get("Code") in CAPACITY:
        response[0].status_code = 400


def is_ambiguous(error: CloudError) -> bool:
    """True if AWS may have done what the call asked: its answer was lost, or AWS failed."""
    return HINTS.get(error.code) == AGAIN


def fail(action: str, code: str, message: str, cause: Exception, remedy: str = "") -> NoReturn:
    """Raises a CloudError, with the hint for the code, if there is one, and a remedy."""
    hint = "".join(f"; {text}" for text in (HINTS.get(code), remedy) if text)
    plain = " ".join(re.sub(r"<[^>]*>|\\n", " ", message).split())  # proxies answer in HTML
    raise CloudError(f"{action}: {code}: {plain[:LONGEST].rstrip('.')}{hint}", code) from cause
