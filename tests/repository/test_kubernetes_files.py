"""The manifests and the container file of examples/kubernetes.

The published schemas are larger than this repository's code. `SPECS` has the fields of them that
our manifests may use, written by hand after MPI operator 0.8.2 and Trainer 2.3. Where `ATOMO_CRDS`
names a folder with the published custom resource definitions, the manifests are checked against
these too: kubeflow.org_mpijobs.yaml, and trainjobs and trainingruntimes of trainer.kubeflow.org.
"""

import os
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.structural import faults
from torch.distributed.run import get_args_parser

from atomo.cli.rank import split_options, split_placement
from atomo.launch.cli_settings import parse_cli_settings

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
STRING, COUNT, TRUTH = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
STRINGS = {"type": "array", "items": STRING}
LABELS = {"type": "object", "additionalProperties": STRING}
QUANTITIES = {"type": "object", "additionalProperties": {}}


def record(required: str = "", **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": required.split()}


def rows(**fields: Any) -> dict[str, Any]:
    return {"type": "array", "items": record(**fields)}


RESOURCES = record(requests=QUANTITIES, limits=QUANTITIES)
METADATA = record(name=STRING, labels=LABELS)
ENVIRONMENT = rows(required="name", name=STRING, value=STRING)
USER = record(
    runAsNonRoot=TRUTH, runAsUser=COUNT, runAsGroup=COUNT, fsGroup=COUNT,
    seccompProfile=record(type={"enum": ["RuntimeDefault", "Localhost", "Unconfined"]}),
)  # fmt: skip
CONTAINER = record(
    required="name", name=STRING, image=STRING, command=STRINGS, args=STRINGS, env=ENVIRONMENT,
    readinessProbe=record(tcpSocket=record("port", port={}), periodSeconds=COUNT),
    securityContext=record(allowPrivilegeEscalation=TRUTH, capabilities=record(drop=STRINGS)),
    resources=RESOURCES,
    volumeMounts=rows(required="name mountPath", name=STRING, mountPath=STRING),
)  # fmt: skip
SPREAD = record(
    "maxSkew topologyKey whenUnsatisfiable", maxSkew=COUNT, topologyKey=STRING,
    whenUnsatisfiable={"enum": ["DoNotSchedule", "ScheduleAnyway"]},
    labelSelector=record(matchLabels=LABELS),
)  # fmt: skip
POD = record(
    "spec",
    metadata=METADATA,
    spec=record(
        "containers",
        containers={"type": "array", "items": CONTAINER},
        restartPolicy={"enum": ["Never", "OnFailure", "Always"]},
        terminationGracePeriodSeconds=COUNT,
        securityContext=USER,
        topologySpreadConstraints={"type": "array", "items": SPREAD},
        volumes=rows(
            required="name", name=STRING,
            persistentVolumeClaim=record("claimName", claimName=STRING),
        ),
    ),
)  # fmt: skip
REPLICAS = record(
    replicas=COUNT,
    restartPolicy={"enum": ["Never", "OnFailure", "Always", "ExitCode"]},
    template=POD,
)
NODES = rows(
    required="name template",
    name=STRING,
    template=record(metadata=METADATA, spec=record("template", backoffLimit=COUNT, template=POD)),
)
SPECS = {
    ("v1", "PersistentVolumeClaim"): record(
        accessModes=STRINGS, storageClassName=STRING, resources=RESOURCES
    ),
    ("kubeflow.org/v2beta1", "MPIJob"): record(
        "mpiReplicaSpecs",
        slotsPerWorker=COUNT,
        launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]},
        sshAuthMountPath=STRING,
        mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]},
        runPolicy=record(
            cleanPodPolicy={"enum": ["None", "Running", "All"]}, backoffLimit=COUNT,
            ttlSecondsAfterFinished=COUNT,
        ),
        mpiReplicaSpecs=record("Launcher Worker", Launcher=REPLICAS, Worker=REPLICAS),
    ),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): record(
        "template",
        mlPolicy=record(numNodes=COUNT, torch=record()),
        template=record(spec=record(failurePolicy=record(maxRestarts=COUNT), replicatedJobs=NODES)),
    ),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): record(
        "runtimeRef",
        runtimeRef=record("name", apiGroup=STRING, kind=STRING, name=STRING),
        trainer=record(
            image=STRING, numNodes=COUNT, numProcPerNode=COUNT, command=STRINGS, args=STRINGS,
            resourcesPerNode=RESOURCES,
        ),
    ),
}  # fmt: skip
DEFINITIONS = {
    "MPIJob": "kubeflow.org_mpijobs.yaml",
    "TrainJob": "trainer.kubeflow.org_trainjobs.yaml",
    "TrainingRuntime": "trainer.kubeflow.org_trainingruntimes.yaml",
}


@cache
def objects() -> dict[str, dict[str, Any]]:
    """Returns the objects of all manifests, by kind."""
    texts = [path.read_text() for path in sorted(FOLDER.glob("*.yaml"))]
    return {each["kind"]: each for text in texts for each in yaml.safe_load_all(text)}


def faults_of(kind: Mapping[str, Any]) -> list[str]:
    spec = SPECS[kind["apiVersion"], kind["kind"]]
    whole = record(
        "apiVersion kind metadata spec",
        apiVersion=STRING,
        kind=STRING,
        metadata=METADATA,
        spec=spec,
    )
    return [*faults(kind, whole)]


def test_manifests_have_fields_that_there_are():
    assert {(each["apiVersion"], each["kind"]) for each in objects().values()} == {*SPECS}
    for each in objects().values():
        assert not faults_of(each)
    damaged = yaml.safe_load((FOLDER / "mpijob.yaml").read_text())
    damaged["spec"]["slotsPerWorker"] = "1"
    damaged["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["container"] = []
    del damaged["spec"]["mpiReplicaSpecs"]["Launcher"]
    places = " ".join(faults_of(damaged))
    assert re.search(r"slotsPerWorker: '1' is not .*container is no field", places)
    assert ".Launcher is missing" in places


@pytest.mark.parametrize("kind", DEFINITIONS)
@pytest.mark.skipif("ATOMO_CRDS" not in os.environ, reason="ATOMO_CRDS names no folder of schemas")
def test_manifests_follow_the_published_schemas(kind):
    definition = yaml.safe_load((Path(os.environ["ATOMO_CRDS"]) / DEFINITIONS[kind]).read_text())
    group = objects()[kind]["apiVersion"].split("/")
    [version] = [each for each in definition["spec"]["versions"] if each["name"] == group[1]]
    assert definition["spec"]["group"] == group[0]
    assert not [*faults(objects()[kind], version["schema"]["openAPIV3Schema"])]


def containers(kind: str) -> dict[str, dict[str, Any]]:
    """Returns the containers of a job by the name of their pods' role, each with its pod."""
    if kind == "MPIJob":
        replicas = objects()[kind]["spec"]["mpiReplicaSpecs"]
        pods = {role: replicas[role]["template"]["spec"] for role in replicas}
    else:
        [node] = objects()["TrainingRuntime"]["spec"]["template"]["spec"]["replicatedJobs"]
        pods = {"node": node["template"]["spec"]["template"]["spec"]}
    return {role: {"pod": pod, **pod["containers"][0]} for role, pod in pods.items()}


def test_no_pod_runs_as_root_and_all_share_the_folder_of_runs():
    [claim] = [objects()["PersistentVolumeClaim"]["metadata"]["name"]]
    assert objects()["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    for kind in ("MPIJob", "TrainJob"):
        for container in containers(kind).values():
            assert container["pod"]["securityContext"]["runAsNonRoot"]
            assert container["pod"]["securityContext"]["runAsUser"] == 1000
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            [volume] = container["pod"]["volumes"]
            assert volume["persistentVolumeClaim"]["claimName"] == claim
            assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/runs"}]


def test_the_mpi_job_asks_open_mpi_5_for_all_workers_and_waits_for_them():
    spec = objects()["MPIJob"]["spec"]
    launcher, worker = containers("MPIJob")["Launcher"], containers("MPIJob")["Worker"]
    assert launcher["command"] == ["atomo", "train"]
    run = parse_cli_settings(launcher["args"], "train", "")
    run.check(lambda line: pytest.fail(line))
    assert run.settings.hostfile == "/etc/mpi/hostfile"  # where the operator mounts it
    replicas = spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    assert run.settings.processes == replicas * spec["slotsPerWorker"]
    variables = {each["name"]: each["value"] for each in launcher["env"]}
    assert variables["PRTE_MCA_prte_default_hostfile"] == run.settings.hostfile
    assert spec["launcherCreationPolicy"] == "WaitForWorkersReady"
    port = worker["readinessProbe"]["tcpSocket"]["port"]
    for name in ("sshd_config", "ssh_config"):
        assert re.search(rf"^\s*Port {port}$", (FOLDER / name).read_text(), re.MULTILINE)
        assert f"{spec['sshAuthMountPath']}/id_rsa" in (FOLDER / name).read_text()
    assert worker["command"][-1] in (FOLDER / "Containerfile").read_text()
    assert "." not in objects()["MPIJob"]["metadata"]["name"]


def test_the_train_job_has_a_command_that_torchrun_and_the_rank_understand():
    trainer = objects()["TrainJob"]["spec"]["trainer"]
    assert trainer["command"] == ["torchrun"]
    launch = get_args_parser().parse_args(trainer["args"])
    assert (launch.training_script, launch.module) == ("atomo", True)
    counts, words = split_placement(launch.training_script_args[1:])
    assert counts == (trainer["numProcPerNode"],) * trainer["numNodes"]
    name, options = split_options(words)
    assert name == "torch"
    settings = parse_cli_settings([f"--n={sum(counts)}", *options], "rank", "").settings
    assert settings.train_dir.startswith("/runs/")
    runtime = objects()["TrainingRuntime"]
    assert objects()["TrainJob"]["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert runtime["spec"]["mlPolicy"]["numNodes"] == trainer["numNodes"]


def test_the_image_has_what_the_manifests_start_and_no_root():
    lines = (FOLDER / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    stages = [at for at, line in enumerate(lines) if line.startswith("FROM ")]
    last = lines[stages[-1] :]
    assert [line for line in last if line.startswith("USER ")] == ["USER 1000:1000"]
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            source = shlex.split(line)[1]
            assert source == "." or (FOLDER.parents[1] / source).exists()
    kept = (FOLDER / "Containerfile.dockerignore").read_text().splitlines()
    for name in (line.removeprefix("!") for line in kept if line.startswith("!")):
        assert (FOLDER.parents[1] / name).exists()
    path = next(line for line in last if line.startswith("ENV PATH="))
    assert "/opt/atomo/bin" in path
