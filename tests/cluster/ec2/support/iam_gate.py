"""A gate before AWS: calls of commands reach it if the policies of an identity allow them.

It stands in botocore, before a call is sent, and refuses with the codes of AWS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ClientError
from cluster.ec2.support.iam_policy import ALLOWED, Policy, Request, decision
from cluster.ec2.support.iam_requests import ACCOUNT, Account, Call, requests_of

__all__ = ["Gate"]

LINKED_ROLE = "iam:CreateServiceLinkedRole"


class Gate:
    """The rights of an identity, and what was refused."""

    def __init__(self, cloud: Any) -> None:
        self.account = Account(cloud)
        self.policies: Sequence[Policy] | None = None  # None: everything is allowed
        self.boundary: Policy | None = None
        self.refused: list[Request] = []
        self.asked: list[Request] = []

    @contextmanager
    def only(self, *policies: Policy, boundary: Policy | None = None) -> Iterator[Gate]:
        """Allows what these policies allow, within the boundary, and nothing else."""
        self.policies, self.boundary = policies, boundary
        self.refused, self.asked = [], []
        try:
            yield self
        finally:
            self.policies = self.boundary = None

    def allows(self, request: Request) -> bool:
        """True if the policies allow a request."""
        assert self.policies is not None
        self.asked.append(request)
        if decision(self.policies, request, self.boundary) == ALLOWED:
            return True
        self.refused.append(request)
        return False

    def may_connect(self, region: str, instance: str) -> bool:
        """True if a session for ssh may begin, which commands have the AWS CLI begin."""
        if self.policies is None:
            return True
        call = Call("ec2", "StartSession", {}, region)
        tags = self.account.tags(call, "instance", instance)
        context = {f"ssm:resourceTag/{key}": [value] for key, value in tags.items()}
        context |= {"ssm:SessionDocumentAccessCheck": ["true"], "aws:RequestedRegion": [region]}
        host = f"arn:aws:ec2:{region}:{ACCOUNT}:instance/{instance}"
        document = f"arn:aws:ssm:{region}::document/AWS-StartSSHSession"
        return all(
            self.allows(Request("ssm:StartSession", target, context)) for target in (host, document)
        )

    def watch(self, client: Any) -> Any:
        """Puts a client of botocore behind the gate."""
        client.meta.events.register_first(
            "provide-client-params", self._check, unique_id="gate of rights"
        )
        return client

    def _check(self, params: Mapping[str, Any], model: Any, context: Any, **_: Any) -> None:
        if self.policies is None:
            return
        service = model.service_model.service_name
        call = Call(service, model.name, params, context["client_region"])
        for request in requests_of(call, self.account):
            if not self.allows(request):
                raise refusal(call, request)
            if request.action == LINKED_ROLE:
                self.account.spot_role = True


def refusal(call: Call, request: Request) -> ClientError:
    """Returns the error of AWS for a call that is not allowed."""
    code = {"ec2": "UnauthorizedOperation", "iam": "AccessDenied", "s3": "AccessDenied"}.get(
        call.service, "AccessDeniedException"
    )
    if request.action == LINKED_ROLE:
        code = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
    message = f"not authorized to perform: {request.action} on resource: {request.resource}"
    return ClientError({"Error": {"Code": code, "Message": message}}, call.operation)
