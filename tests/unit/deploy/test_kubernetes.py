"""The files for Kubernetes are what its API takes, and ask for no more rights than they say."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stallwatch.config import load
from tests.readme import OPERATORS_RULES, RULES, operators_rules

yaml = pytest.importorskip("yaml")
validate = pytest.importorskip("kubernetes_validate")

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
FILES = sorted(FOLDER.rglob("*.yaml"))
OWN_KINDS = ("Kustomization", "Component", "PodMonitor", "PrometheusRule")  # of kustomize and of the operator
VERSION = "1.30"


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one is not None]


def pod() -> dict[str, Any]:
    (daemon_set,) = documents(FOLDER / "base" / "daemonset.yaml")
    spec = daemon_set["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_document_is_of_the_apis_schema(path: Path) -> None:
    for document in documents(path):
        assert document["kind"]
        if document["kind"] not in OWN_KINDS:
            validate.validate(document, VERSION, strict=True)


def test_a_field_that_the_api_does_not_know_is_seen() -> None:
    (broken,) = documents(FOLDER / "base" / "daemonset.yaml")
    broken["spec"]["template"]["spec"]["containers"][0]["securityContxt"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, VERSION, strict=True)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("kustomization.yaml")), ids=lambda path: path.parent.name)
def test_what_a_kustomization_names_is_there_and_nothing_lies_beside_it_unused(path: Path) -> None:
    (said,) = documents(path)
    named = {*said.get("resources", ()), *(patch["path"] for patch in said.get("patches", ()))}
    assert named == {one.name for one in path.parent.glob("*.yaml")} - {path.name}
    for made in said.get("configMapGenerator", ()):
        assert all((path.parent / file).exists() for file in made["files"])


def test_no_container_is_privileged_and_the_one_that_talks_has_no_capability() -> None:
    for container in (*pod()["containers"], *pod()["initContainers"]):
        security = container["securityContext"]
        assert not security.get("privileged")
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"]["drop"] == ["ALL"]
    daemon = next(one for one in pod()["containers"] if one["name"] == "daemon")
    assert "add" not in daemon["securityContext"]["capabilities"]
    assert daemon["securityContext"]["runAsNonRoot"] is True
    assert pod()["automountServiceAccountToken"] is False


def test_mounts_are_of_volumes_that_exist_and_secrets_go_to_the_daemon_alone() -> None:
    volumes = {one["name"]: one for one in pod()["volumes"]}
    for container in (*pod()["containers"], *pod()["initContainers"]):
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= set(volumes)
        if container["name"] != "daemon":
            assert not [name for name in mounted if "secret" in volumes[name]]


def test_its_configuration_is_one_that_the_daemon_takes_and_names_what_is_mounted() -> None:
    config, _ = load(FOLDER / "base" / "config.toml", {}, strict=True)
    daemon = next(one for one in pod()["containers"] if one["name"] == "daemon")
    mounts = [mount["mountPath"] for mount in daemon["volumeMounts"]]
    files = (config.fleet.key_file, config.fleet.password_file, config.http.token_file, config.daemon.privileged_socket)
    for file in files:
        assert any(file.startswith(f"{mount}/") for mount in mounts), file
    assert config.http.listen.endswith(f":{daemon['ports'][0]['containerPort']}")


KUBECTL = shutil.which("kubectl")
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: train, image: a}, {name: shipper, image: b}]}}}
"""


def test_training_pods_and_the_daemon_meet_in_one_directory_of_the_node() -> None:
    (said,) = documents(FOLDER / "training" / "ranks.yaml")
    ranks = next(one for one in pod()["volumes"] if one["name"] == "ranks")
    assert said["data"]["directory"] == ranks["hostPath"]["path"]


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_a_job_without_volumes_gets_the_directory_in_each_container(tmp_path: Path) -> None:
    assert KUBECTL is not None
    shutil.copytree(FOLDER / "training", tmp_path / "training")
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "kustomization.yaml").write_text("resources: [job.yaml]\ncomponents: [training]\n")
    done = subprocess.run([KUBECTL, "kustomize", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (job,) = yaml.safe_load_all(done.stdout)
    validate.validate(job, VERSION, strict=True)
    spec = job["spec"]["template"]["spec"]
    (volume,) = spec["volumes"]
    assert volume["hostPath"] == {"path": "/run/stallwatch/ranks", "type": "Directory"}
    for container in spec["containers"]:
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/run/stallwatch/ranks"}]


def test_the_operators_rules_are_the_rules() -> None:
    assert OPERATORS_RULES.read_text(encoding="utf-8") == operators_rules(), "run `python -m tests.readme`"
    (made,) = documents(OPERATORS_RULES)
    assert made["spec"]["groups"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
