"""A stand-in for AWS: moto's HTTP server, and before it a proxy that can refuse, fail and add.

The proxy adds what moto lacks: placement groups, prices, quotas, host keys on consoles, and launch
times of the last start.
"""

import base64
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs

from boto3 import client as make_client
from cluster.ec2.support.iam_policy import Policy, Request, decision

# Parts of moto that are slow at every call or reset, and that no test needs, are left out: it
# searches the disk for its modules, logs, and makes a volume for each of hundreds of images.
# After `save` a copy of the process serves; `restore` ends it for another copy of the same moment,
# `drop` for the process that was saved.
SERVER = """
import gc, logging, os, socketserver, sys, threading
from moto import backends
from moto.ec2.models import amis
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication, MotoRequestHandler, create_backend_app
)
from werkzeug.serving import make_server

RESTORE, DROP = 7, 8
modules = [*backends.list_of_moto_modules()]
backends.list_of_moto_modules = lambda: modules
amis.load_resource = lambda path: []
logging.getLogger("werkzeug").setLevel(logging.ERROR)
app = DomainDispatcherApplication(create_backend_app)
server = make_server("127.0.0.1", 0, app, True, request_handler=MotoRequestHandler)

def serve():
    act = socketserver.BaseServer.serve_forever  # werkzeug's own closes the socket afterwards
    thread = threading.Thread(target=act, args=(server, 0.05), daemon=True)
    thread.start()
    return thread

def end_of_copy():
    while True:
        process = os.fork()
        if not process:
            return None
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code != RESTORE:
            return code

thread = serve()
answers, sys.stdout = sys.stdout, sys.stderr  # moto prints when a service is not one of its own
print("port", server.server_address[1], file=answers, flush=True)
for line in iter(sys.stdin.readline, ""):
    if line.strip() == "restore":
        os._exit(RESTORE)
    if line.strip() == "drop":
        os._exit(DROP)
    server.shutdown()
    thread.join()
    gc.freeze()  # or each copy copies all pages at its first collection
    code = end_of_copy()
    if code not in (None, DROP):
        os._exit(code)
    thread = serve()
    print("serves", file=answers, flush=True)
os._exit(0)
"""
XML = "text/xml"
ACCOUNTS = {"other": "210987654321"}  # by access key; all others are of moto's own account
LONGEST_S = 300  # of an answer of moto's, where others have the processors
UBUNTU = "ami-785db401"  # one of moto's images
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


@dataclass(frozen=True)
class Reply:
    """An HTTP answer."""

    status: int
    body: bytes
    kind: str = XML
    more: tuple[tuple[str, str], ...] = ()  # headers that S3 has


def refusal(code: str, message: str = "no") -> Reply:
    """EC2's way to say no."""
    status = 503 if code == "RequestLimitExceeded" else 400
    error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    text = f"<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>"
    return Reply(status, text.encode())


def fewer(words: dict[str, str], forward: Callable[[], Reply]) -> Reply:
    """Returns the reply of a fleet that launched one host, with the error for the others."""
    body = forward().body.decode()
    items = re.search("<fleetInstanceSet>(.*)</fleetInstanceSet>", body, re.DOTALL)
    assert items is not None
    first = re.findall("<instanceIds><item>.*?</item>", items[1], re.DOTALL)[0]
    one = f"<item>{first}</instanceIds></item>"
    error = (
        "<item><errorCode>UnfulfillableCapacity</errorCode><errorMessage>none</errorMessage></item>"
    )
    body = body.replace(items[0], f"<fleetInstanceSet>{one}</fleetInstanceSet>")
    body = body.replace(
        "</CreateFleetResponse>", f"<errorSet>{error}</errorSet></CreateFleetResponse>"
    )
    return Reply(200, body.encode())


def as_json(record: object) -> Reply:
    """Returns an answer of a service that speaks JSON."""
    return Reply(200, json.dumps(record).encode(), "application/x-amz-json-1.1")


Act = Callable[[dict[str, str], Callable[[], Reply]], Reply | None]


class Moto:
    """Moto's server, in a process of its own."""

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}
        command = [sys.executable, "-c", SERVER]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        port = next(line for line in self._process.stdout if line.startswith("port")).split()[1]
        self.url = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)

    def reset(self) -> None:
        """Forgets everything."""
        request = urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")
        urllib.request.urlopen(request, timeout=LONGEST_S).close()

    def order(self, word: str) -> None:
        """Has the server save its state, restore it, or drop what it has saved."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()  # unbounded: of a process that serves at once
        assert answer == "serves\n", answer

    def client(self, service: str = "ec2") -> Any:
        """Returns a client that goes past the proxy."""
        if service not in self._clients:
            self._clients[service] = make_client(service, endpoint_url=self.url, **KEYS)
        return self._clients[service]

    def region(self, name: str) -> Any:
        """Returns a client of EC2 in another region."""
        if name not in self._clients:
            keys = KEYS | {"region_name": name}
            self._clients[name] = make_client("ec2", endpoint_url=self.url, **keys)
        return self._clients[name]

    def account(self, number: str) -> Any:
        """Returns a client of EC2 in another account, by a role of that account.

        A reset forgets the role, so each client is new.
        """
        role = {"RoleArn": f"arn:aws:iam::{number}:role/other", "RoleSessionName": "other"}
        given = self.client("sts").assume_role(**role)["Credentials"]
        keys = {"aws_access_key_id": given["AccessKeyId"], "region_name": "us-east-1",
                "aws_secret_access_key": given["SecretAccessKey"],
                "aws_session_token": given["SessionToken"]}  # fmt: skip
        return make_client("ec2", endpoint_url=self.url, **keys)


@dataclass
class Cloud:
    """The proxy in front of moto: `acts` may answer a call, or change moto's answer."""

    moto: Moto
    calls: list[str] = field(default_factory=list)
    acts: dict[str, list[Act]] = field(default_factory=dict)
    placement_groups: dict[str, dict[str, str]] = field(default_factory=dict)  # name -> tags
    consoles: dict[str, str] = field(default_factory=dict)  # instance -> output
    attached: dict[str, str] = field(default_factory=dict)  # role -> policy of AWS's own
    starts: dict[str, str] = field(default_factory=dict)  # instance -> when it was last started
    console: str = "booting"  # that of all others
    prices: dict[str, float] | None = None  # by instance type; "gp3" and "address" too
    quotas: dict[str, float] | None = None
    denied: set[str] | None = None  # refused by the policy simulator; None: not callable
    full: set[str] = field(default_factory=set)  # regions that have no capacity
    identity: Policy | None = None  # by which the policy simulator decides, in place of `denied`
    catalogue: dict[tuple[str, bytes], Reply] = field(default_factory=dict)  # for all callers
    where: tuple[str, int] = ("127.0.0.1", 0)

    def __post_init__(self) -> None:
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # so that connections are kept
            wbufsize = -1  # headers and body in one packet, or each waits for the other's receipt

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = dict(self.headers) | {METHOD: self.command}
                reply = cloud.answer(self.path, headers, body)
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.kind)
                self.send_header("Content-Length", str(len(reply.body)))
                for name, value in reply.more:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def do_PUT(self) -> None:
                self.do_POST()

            def do_DELETE(self) -> None:
                self.do_POST()

            def do_GET(self) -> None:
                if self.path == "/my-address":
                    self.reply_address()
                else:
                    self.do_POST()

            def reply_address(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "12")
                self.end_headers()
                self.wfile.write(b"203.0.113.9\n")

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(self.where, Handler)
        self._server.daemon_threads = True
        self.url = f"http://{self.where[0]}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """An empty account, and AWS as usual."""
        self.moto.reset()
        for memory in (self.calls, self.acts, self.placement_groups, self.consoles,
                       self.starts, self.attached, self.full):  # fmt: skip
            memory.clear()
        self.prices = self.quotas = self.denied = self.identity = None
        self.console = "booting"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def on(self, action: str, act: Act | Reply, times: int = 1) -> None:
        """Answers the next calls of an action this way; None from `act` means: as always."""
        fixed = (lambda *_: act) if isinstance(act, Reply) else act
        self.acts.setdefault(action, []).extend([fixed] * times)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        words = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        target = headers.get("X-Amz-Target", "").rpartition(".")[2]
        action = words.get("Action") or target or by_path(path, headers.get(METHOD, ""))
        self.calls.append(action)

        def forward() -> Reply:
            if action not in CATALOGUE:
                return self.forward(path, headers, body)
            key = (region(headers), body)
            if key not in self.catalogue:
                self.catalogue[key] = self.forward(path, headers, body)
            return self.catalogue[key]

        def as_always() -> Reply:
            if action.startswith("Describe") and words.get("DryRun") == "true":
                return refusal("DryRunOperation", "You may")  # moto looks long, and knows not all
            if action in ORDERS and region(headers) in self.full and "DryRun" not in words:
                return refusal("InsufficientInstanceCapacity", "none is left here")
            own = OWN.get(action)
            return (own and own(self, words, body, forward)) or forward()

        act = self.acts[action].pop(0) if self.acts.get(action) else None
        return (act and act(words, as_always)) or as_always()

    def forward(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        kept = {key: value for key, value in headers.items() if key.lower() not in HOP}
        method = kept.pop(METHOD, "POST" if body else "GET")
        if account := ACCOUNTS.get(access_key(headers)):
            kept["x-moto-account-id"] = account
        request = urllib.request.Request(
            self.moto.url + path, data=body or None, headers=kept, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:
                kind = answer.headers.get("Content-Type", XML)
                more = tuple(
                    (name, answer.headers[name]) for name in KEPT if name in answer.headers
                )
                return Reply(answer.status, answer.read(), kind, more)
        except HTTPError as error:
            with error:
                return Reply(error.code, error.read(), error.headers.get("Content-Type", XML))


ORDERS = {"RunInstances", "CreateFleet"}
# What AWS sells is no account's own, and moto looks for it long.
CATALOGUE = {"DescribeInstanceTypes", "DescribeInstanceTypeOfferings"}


def region(headers: dict[str, str]) -> str:
    """Returns the region for which a call is signed; empty if it is not signed."""
    scope = headers.get("Authorization", "").partition("Credential=")[2].split("/")
    return scope[2] if len(scope) > 2 else ""


def access_key(headers: dict[str, str]) -> str:
    """Returns the access key with which a call is signed; empty if it is not signed."""
    return headers.get("Authorization", "").partition("Credential=")[2].split("/")[0]


def by_path(path: str, method: str) -> str:
    """Returns the call that a path and a method stand for, where a call has no other name."""
    where, _, query = path.partition("?")
    if match := re.fullmatch("/(schedules|schedule-groups)/[^/]+", where):
        return VERBS[method] + {"schedules": "Schedule"}.get(match[1], "ScheduleGroup")
    for pattern, call in PATHS.items():
        if re.fullmatch(pattern, where):
            return call
    return "ListObjectsV2" if "list-type=2" in query else "GetObject"


VERBS = {"POST": "Create", "GET": "Get", "PUT": "Update", "DELETE": "Delete"}  # of the scheduler
PATHS = {
    ".*/mount-targets/[^/]+/security-groups": "DescribeMountTargetSecurityGroups",
    ".*/mount-targets": "DescribeMountTargets",
    ".*/file-systems": "DescribeFileSystems",
}
METHOD = "X-Method-Of-Request"  # which the proxy passes on beside the headers
KEPT = ("ETag", "Last-Modified", "Content-Range")
HOP = {"host", "content-length", "connection", "accept-encoding"}
Forward = Callable[[], Reply]


def wrapped(action: str, inner: str) -> Reply:
    """Returns an answer of EC2."""
    name, space = f"{action}Response", "http://ec2.amazonaws.com/doc/2016-11-15/"
    return Reply(200, f'<{name} xmlns="{space}">{inner}</{name}>'.encode())


def tags_in(words: dict[str, str]) -> dict[str, str]:
    """Returns the tags of a TagSpecification."""
    pattern = re.compile(r"TagSpecification\.\d+\.Tag\.(\d+)\.Key")
    return {words[key]: words[key.removesuffix("Key") + "Value"] for key in words
            if pattern.fullmatch(key)}  # fmt: skip


def create_group(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    if words["GroupName"] in cloud.placement_groups:
        return refusal("InvalidPlacementGroup.Duplicate")
    cloud.placement_groups[words["GroupName"]] = tags_in(words)
    return wrapped("CreatePlacementGroup", "<return>true</return>")


def delete_group(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    if cloud.placement_groups.pop(words["GroupName"], None) is None:
        return refusal("InvalidPlacementGroup.Unknown")
    return wrapped("DeletePlacementGroup", "<return>true</return>")


def describe_groups(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    items = "".join(
        f"<item><groupName>{name}</groupName><state>available</state></item>"
        for name, tags in cloud.placement_groups.items()
        if all(tags.get(key) == value for key, value in wanted_tags(words).items())
    )
    return wrapped("DescribePlacementGroups", f"<placementGroupSet>{items}</placementGroupSet>")


def wanted_tags(words: dict[str, str]) -> dict[str, str]:
    """Returns the tags that a call filters by."""
    return {value.removeprefix("tag:"): words[key.removesuffix("Name") + "Value.1"]
            for key, value in words.items() if value.startswith("tag:")}  # fmt: skip


def describe_tags(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    items = "".join(
        f"<item><resourceId>pg-{name}</resourceId><resourceType>placement-group</resourceType>"
        f"<key>{key}</key><value>{value}</value></item>"
        for name, tags in cloud.placement_groups.items()
        for key, value in tags.items()
        if key in words.values() and value in words.values()
    )
    told = forward()
    text = told.body.decode().replace("<tagSet/>", "<tagSet></tagSet>")
    return Reply(told.status, text.replace("</tagSet>", f"{items}</tagSet>").encode())


def console(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    output = base64.b64encode(
        cloud.consoles.get(words["InstanceId"], cloud.console).encode()
    ).decode()
    return wrapped("GetConsoleOutput", f"<output>{output}</output>")


def start_instances(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    told = forward()
    if told.status == 200:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        cloud.starts |= {value: now for key, value in words.items() if key.startswith("InstanceId")}
    return told


def describe_instances(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    told = forward()
    text = told.body.decode()
    for id, when in cloud.starts.items():
        ours = rf"(<instanceId>{id}</instanceId>.*?<launchTime>)[^<]*"
        text = re.sub(ours, rf"\g<1>{when}", text, count=1, flags=re.DOTALL)
    return Reply(told.status, text.encode(), told.kind)


def create_image(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    """Moto takes no tags of the snapshot, and gives a name to several images."""
    client = cloud.moto.client()
    named = [{"Name": "name", "Values": [words["Name"]]}]
    if client.describe_images(Owners=["self"], Filters=named)["Images"]:
        return refusal("InvalidAMIName.Duplicate", f"{words['Name']} is in use already")
    tags = [{"Key": key, "Value": value} for key, value in tags_in(words).items()]
    made = client.create_image(InstanceId=words["InstanceId"], Name=words["Name"])["ImageId"]
    (image,) = client.describe_images(ImageIds=[made])["Images"]
    snapshot = image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    client.create_tags(Resources=[made, snapshot], Tags=tags)
    return wrapped("CreateImage", f"<imageId>{made}</imageId>")


def attach(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    """Moto does not know AWS's own policies."""
    cloud.attached[words["RoleName"]] = words["PolicyArn"]
    return done_in_iam("AttachRolePolicy")


def detach(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    cloud.attached.pop(words["RoleName"], None)
    return done_in_iam("DetachRolePolicy")


def list_attached(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    arn = cloud.attached.get(words["RoleName"])
    items = f"<member><PolicyArn>{arn}</PolicyArn></member>" if arn else ""
    return done_in_iam("ListAttachedRolePolicies", f"<AttachedPolicies>{items}</AttachedPolicies>")


def delete_role(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply | None:
    return refusal("DeleteConflict") if words["RoleName"] in cloud.attached else None


def part(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply | None:
    """Moto's server fails where the profile does not have the role."""
    told = cloud.moto.client("iam").list_instance_profiles()["InstanceProfiles"]
    have = {one["InstanceProfileName"]: [role["RoleName"] for role in one["Roles"]] for one in told}
    joined = words["RoleName"] in have.get(words["InstanceProfileName"], [])
    return None if joined else refusal("NoSuchEntity")


def done_in_iam(name: str, inner: str = "") -> Reply:
    """Returns an answer of IAM."""
    text = f"<{name}Response><{name}Result>{inner}</{name}Result></{name}Response>"
    return Reply(200, text.encode())


def scheduled(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply | None:
    """Moto takes schedules with roles that do not exist; AWS does not."""
    role = json.loads(body)["Target"]["RoleArn"].rpartition("/")[2]
    roles = cloud.moto.client("iam").list_roles()["Roles"]
    if role in {one["RoleName"] for one in roles}:
        return None
    message = "The execution role you provide must allow AWS EventBridge Scheduler to assume it"
    return refusal_of_scheduler("ValidationException", message)


def refusal_of_scheduler(code: str, message: str = "no", status: int = 400) -> Reply:
    """Returns an error in the way of EventBridge Scheduler."""
    words = json.dumps({"code": code, "message": message}).encode()
    return Reply(status, words, "application/json")


def products(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    if cloud.prices is None:
        return forward()
    values = {one["Field"]: one["Value"] for one in json.loads(body)["Filters"]}
    if "tenancy" in values and "instanceType" not in values:
        return as_json({"PriceList": [product(*one) for one in cloud.prices.items()]})
    kinds = {"volumeApiName": "gp3", "productFamily": "snapshot", "group": "address"}
    key = values.get("instanceType") or next(kinds[kind] for kind in kinds if kind in values)
    known = [product(key, cloud.prices[key])] if key in cloud.prices else []
    return as_json({"PriceList": known})


def product(type: str, usd: float) -> str:
    """Returns an entry of the price list."""
    term = {"t": {"priceDimensions": {"d": {"pricePerUnit": {"USD": str(usd)}}}}}
    attributes = {"attributes": {"instanceType": type}}
    return json.dumps({"product": attributes, "terms": {"OnDemand": term}})


def quotas(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    if cloud.quotas is None:
        return forward()
    return as_json({"Quotas": [{"QuotaName": k, "Value": v} for k, v in cloud.quotas.items()]})


def simulate(cloud: Cloud, words: dict[str, str], body: bytes, forward: Forward) -> Reply:
    if cloud.denied is None and cloud.identity is None:
        return refusal("AccessDenied", "not authorized to perform: iam:SimulatePrincipalPolicy")
    context = context_entries(words)
    items = "".join(
        f"<member><EvalActionName>{action}</EvalActionName><EvalDecision>"
        f"{simulated(cloud, Request(action, resource, context))}</EvalDecision></member>"
        for action in members(words, "ActionNames")
        for resource in members(words, "ResourceArns")
    )
    results = f"<IsTruncated>false</IsTruncated><EvaluationResults>{items}</EvaluationResults>"
    return done_in_iam("SimulatePrincipalPolicy", results)


def simulated(cloud: Cloud, request: Request) -> str:
    """Returns the decision of IAM's policy simulator."""
    if cloud.identity is not None:
        return decision([cloud.identity], request)
    values = [value for values in request.context.values() for value in values]
    names = {request.action, *(f"{request.action} {value}" for value in values)}
    return "implicitDeny" if names & (cloud.denied or set()) else "allowed"


def members(words: dict[str, str], name: str) -> list[str]:
    """Returns the members of a list in a call of IAM."""
    return [value for key, value in words.items() if re.fullmatch(rf"{name}\.member\.\d+", key)]


def context_entries(words: dict[str, str]) -> dict[str, list[str]]:
    """Returns the context in a call of the policy simulator."""
    pattern = re.compile(r"(ContextEntries\.member\.\d+)\.ContextKeyName")
    heads = {match[1]: value for key, value in words.items() if (match := pattern.fullmatch(key))}
    return {
        key: members(words, re.escape(f"{head}.ContextKeyValues")) for head, key in heads.items()
    }


OWN = {
    "SimulatePrincipalPolicy": simulate,
    "CreatePlacementGroup": create_group,
    "DeletePlacementGroup": delete_group,
    "DescribePlacementGroups": describe_groups,
    "DescribeTags": describe_tags,
    "AttachRolePolicy": attach,
    "DetachRolePolicy": detach,
    "ListAttachedRolePolicies": list_attached,
    "DeleteRole": delete_role,
    "RemoveRoleFromInstanceProfile": part,
    "CreateImage": create_image,
    "CreateSchedule": scheduled,
    "UpdateSchedule": scheduled,
    "DescribeInstances": describe_instances,
    "StartInstances": start_instances,
    "GetConsoleOutput": console,
    "GetProducts": products,
    "ListServiceQuotas": quotas,
}


def everything(cloud: Cloud) -> dict[str, set[str]]:
    """Returns all resources of the account that cost or may cost money, found without tags."""
    client = cloud.moto.client()
    batches = client.describe_instances()["Reservations"]
    all_instances = [one for batch in batches for one in batch["Instances"]]
    instances = {i["InstanceId"] for i in all_instances if i["State"]["Name"] != "terminated"}
    ended = {i["InstanceId"] for i in all_instances} - instances
    requests = client.describe_spot_instance_requests()["SpotInstanceRequests"]
    fleets = client.describe_fleets()["Fleets"]
    interfaces = client.describe_network_interfaces()["NetworkInterfaces"]
    templates = client.describe_launch_templates()["LaunchTemplates"]
    live = ("open", "active")
    return {
        "instances": instances,
        "requests": {r["SpotInstanceRequestId"] for r in requests if r["State"] in live},
        "fleets": {f["FleetId"] for f in fleets if not f["FleetState"].startswith("deleted")},
        "volumes": {v["VolumeId"] for v in client.describe_volumes()["Volumes"]},
        # Moto keeps the first interface of an instance that has ended; EC2 deletes it.
        "interfaces": {
            i["NetworkInterfaceId"]
            for i in interfaces
            if i.get("Attachment", {}).get("InstanceId") not in ended
        },
        "addresses": {a["PublicIp"] for a in client.describe_addresses()["Addresses"]},
        "templates": {t["LaunchTemplateId"] for t in templates},
        "keys": {k["KeyName"] for k in client.describe_key_pairs()["KeyPairs"]},
        "groups": {g["GroupId"] for g in client.describe_security_groups()["SecurityGroups"]},
        "placement": set(cloud.placement_groups),
    }


def write_cluster(path: Path, **changes: object) -> None:
    """A configuration that suits moto."""
    settings = {"name": "test", "image_id": UBUNTU, "method": "on-demand", "n_workers": 2,
                "ssh_from": "203.0.113.7/32"} | changes  # fmt: skip
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
