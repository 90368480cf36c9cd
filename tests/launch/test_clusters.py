"""The templates of launch/clusters: scripts do what they say with programs that stand in for
launch.sweep and scontrol; the Kubernetes file has the fields of its API."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

CLUSTERS = Path(__file__).parents[2] / "launch/clusters"
YAML = sorted(CLUSTERS.glob("*.yaml"))

TEXT, NUMBER, FLAG = str, int, bool
VOLUME = {
    "name": TEXT,
    "persistentVolumeClaim": {"claimName": TEXT},
    "secret": {"secretName": TEXT},
}
CONTAINER = {
    "name": TEXT,
    "image": TEXT,
    "command": [TEXT],
    "env": [{"name": TEXT, "value": TEXT}],
    "resources": {"limits": {"nvidia.com/gpu": NUMBER}},
    "volumeMounts": [{"name": TEXT, "mountPath": TEXT, "readOnly": FLAG}],
}
RULE = {
    "action": TEXT,
    "onExitCodes": {"containerName": TEXT, "operator": TEXT, "values": [NUMBER]},
    "onPodConditions": [{"type": TEXT, "status": TEXT}],
}
POD = {
    "restartPolicy": TEXT,
    "terminationGracePeriodSeconds": NUMBER,
    "containers": [CONTAINER],
    "volumes": [VOLUME],
}
FIELDS = {
    "Job": {
        "apiVersion": TEXT,
        "kind": TEXT,
        "metadata": {"name": TEXT},
        "spec": {
            "completionMode": TEXT,
            "completions": NUMBER,
            "parallelism": NUMBER,
            "backoffLimitPerIndex": NUMBER,
            "podFailurePolicy": {"rules": [RULE]},
            "template": {"spec": POD},
        },
    },
    "PersistentVolumeClaim": {
        "apiVersion": TEXT,
        "kind": TEXT,
        "metadata": {"name": TEXT},
        "spec": {"accessModes": [TEXT], "resources": {"requests": {"storage": TEXT}}},
    },
}
"""The fields of the Kubernetes API (batch/v1 and v1) that the files use, with their types."""

VERSIONS = {"Job": "batch/v1", "PersistentVolumeClaim": "v1"}


def wrong(value, fields, path=""):
    """Lists what of a document is not in `fields`, or of another type."""
    if isinstance(fields, dict):
        if not isinstance(value, dict):
            return [path]
        unknown = [f"{path}.{key}" for key in value if key not in fields]
        known = [key for key in value if key in fields]
        return unknown + [
            w for k in known for w in wrong(value[k], fields[k], f"{path}.{k}")
        ]
    if isinstance(fields, list):
        if not isinstance(value, list):
            return [path]
        return [
            w
            for i, item in enumerate(value)
            for w in wrong(item, fields[0], f"{path}[{i}]")
        ]
    return [] if type(value) is fields else [path]


def documents(path):
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_kubernetes_files_have_fields_of_its_api(path):
    for document in documents(path):
        assert wrong(document, FIELDS[document["kind"]]) == []
        assert document["apiVersion"] == VERSIONS[document["kind"]]


def test_a_wrong_field_is_seen():
    *_, job = documents(CLUSTERS / "kubernetes.yaml")
    job["spec"]["template"]["spec"]["containers"][0]["name"] = 8
    job["spec"]["completion"] = 8
    assert wrong(job, FIELDS["Job"]) == [
        ".spec.completion",
        ".spec.template.spec.containers[0].name",
    ]


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_a_job_is_one_that_kubernetes_takes(path):
    """What the API asks for beside the fields, and what its parts say of each other."""
    *claims, job = documents(path)
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert pod["restartPolicy"] == "Never"
    rules = spec["podFailurePolicy"]["rules"]
    assert rules[0]["action"] == "Ignore"
    assert rules[0]["onExitCodes"] == {
        "containerName": container["name"],
        "operator": "In",
        "values": [75],
    }
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    for volume in pod["volumes"]:
        if "persistentVolumeClaim" in volume:
            (claim,) = claims
            claimed = volume["persistentVolumeClaim"]["claimName"]
            assert claimed == claim["metadata"]["name"]


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
@pytest.mark.ci
def test_kubernetes_files_fit_its_schemas(path):
    validate = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate has the schemas"
    )
    for document in documents(path):
        # The version in which backoffLimitPerIndex left its trial.
        validate.validate(document, "1.33", strict=True)


SWEEP = """#!/bin/bash
echo "$@" >> "$LOG"
if [ "${MODE:-}" = wait ]; then
  trap 'sleep 1; exit 75' TERM
  touch "$LOG.ready"
  while true; do sleep 0.05; done
fi
for word in "$@"; do
  case $word in --workdir=*) mkdir -p "${word#*=}" && echo done >> "${word#*=}/result";; esac
done
exit "${STATUS:-0}"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*" >> "$LOG"
exit 1
"""


@pytest.fixture
def start(tmp_path):
    """Starts a script with stand-ins for the programs that it calls."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("python", SWEEP), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def call(script, *arguments, **variables):
        env = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "LOG": str(tmp_path / "log"),
            **variables,
        }
        if "WORKDIR" not in variables:
            env.pop("WORKDIR", None)
        return subprocess.Popen(
            ["bash", CLUSTERS / script, *arguments], env=env, cwd=tmp_path
        )

    return call


def terminated(process, tmp_path):
    """Sends SIGTERM twice once the sweep runs; returns the script's status."""
    for _ in range(200):
        if (tmp_path / "log.ready").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    # As SLURM does when the time is over.
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    return process.wait(20)


def logged(tmp_path):
    return (tmp_path / "log").read_text().splitlines()


ARRAY = dict(SLURM_ARRAY_JOB_ID="17", SLURM_ARRAY_TASK_ID="4")


@pytest.mark.parametrize("status", [0, 1, 2, 75])
def test_the_slurm_script_has_the_status_of_the_sweep(start, tmp_path, status):
    process = start("slurm.sh", WORKDIR="/w", STATUS=str(status), **ARRAY)
    assert process.wait(20) == status
    requeued = ["scontrol requeue 17_4"] if status == 75 else []
    assert logged(tmp_path) == ["-m launch.sweep --join --workdir=/w", *requeued]


def test_the_slurm_script_waits_until_the_sweep_has_saved(start, tmp_path):
    process = start("slurm.sh", WORKDIR="/w", MODE="wait", **ARRAY)
    assert terminated(process, tmp_path) == 75
    assert logged(tmp_path)[-1] == "scontrol requeue 17_4"


def test_the_slurm_script_needs_a_workdir(start):
    assert start("slurm.sh").wait(20) != 0
