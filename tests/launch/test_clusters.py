"""The templates of launch/clusters: the Kubernetes file has the fields of its API."""

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
