"""The files for Kubernetes are what its API takes, and ask for no more rights than they say."""

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


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "ranks.yaml"], ids=lambda path: path.stem)
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


def test_training_pods_and_the_daemon_meet_in_one_directory_of_the_node() -> None:
    volume, mount = yaml.safe_load((FOLDER / "training" / "ranks.yaml").read_text(encoding="utf-8"))
    ranks = next(one for one in pod()["volumes"] if one["name"] == "ranks")
    assert volume["value"]["hostPath"]["path"] == ranks["hostPath"]["path"] == mount["value"]["mountPath"]


def test_the_operators_rules_are_the_rules() -> None:
    assert OPERATORS_RULES.read_text(encoding="utf-8") == operators_rules(), "run `python -m tests.readme`"
    (made,) = documents(OPERATORS_RULES)
    assert made["spec"]["groups"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
