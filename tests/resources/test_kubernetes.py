"""Manifests of Kubernetes: each against the schemas of every version, and the promises that no schema knows."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
import yaml
from typer.main import get_command

import probe
from probe.cli import VERBS, app
from probe.core.config.load import load
from tests.required import require
from tests.resources.manifests import (
    DOCUMENTS,
    FOLDER,
    PODS,
    ROOT,
    Document,
    containers,
    kustomizations,
    prometheus_configuration,
)

kubernetes_validate = require("kubernetes_validate")
from kubernetes_validate import utils  # noqa: E402

GUIDE = (ROOT / "docs" / "guides" / "deployment.md").read_text(encoding="utf-8")
VERSIONS = sorted(set(utils.all_versions()), key=lambda version: [int(part) for part in version.split(".")])
PORTS = {"exporter": 9445, "serve": 8765, "remediate": 9095, "prometheus": 9090, "alertmanager": 9093}


def named(items: list[Document]) -> list[Any]:
    return [pytest.param(item, id=f"{item.kind}-{item.namespace}-{item.name}") for item in items]


def test_each_kind_of_part_is_there() -> None:
    """So that the tests below are about something."""
    assert {(document.kind, document.name) for document in DOCUMENTS} >= {
        ("Namespace", "monitoring"),
        ("StatefulSet", "prometheus"),
        ("StatefulSet", "alertmanager"),
        ("DaemonSet", "probe-exporter"),
        ("Deployment", "probe-serve"),
        ("Deployment", "remediation"),
        ("Job", "training-demo"),
    }
    assert [VERSIONS[0].rpartition(".")[0], VERSIONS[-1].rpartition(".")[0]] == ["1.25", "1.37"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid_in_every_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strictly: a key that the schema does not know is an error."""
    # It would read all definitions again for each document.
    monkeypatch.setattr(utils, "schema_contents", lru_cache(utils.schema_contents))
    for document in DOCUMENTS:
        kubernetes_validate.validate(document.content, version, strict=True)


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_a_misspelt_key_is_refused(version: str) -> None:
    """In a manifest that is valid otherwise."""
    broken = copy.deepcopy(next(each.content for each in DOCUMENTS if each.name == "probe-serve" and each.pod))
    security = broken["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    security["readOnlyRootFileSystem"] = security.pop("readOnlyRootFilesystem")
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFileSystem"):
        kubernetes_validate.validate(broken, version, strict=True)


@pytest.mark.parametrize("document", named(PODS))
def test_containers_have_limits_probes_and_few_rights(document: Document) -> None:
    """Requests and limits of CPU, memory and disk; a pinned image; no root, no new privileges, nothing written into the
    image, no capability; a readiness probe, and a liveness probe where a restart does not end a training."""
    assert document.pod is not None
    pod = document.pod["spec"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (
        True,
        document.name == "prometheus",
    )
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        resources = container["resources"]
        for kind in ("requests", "limits"):
            assert {"cpu", "memory", "ephemeral-storage"} <= set(resources[kind]), (container["name"], kind)
        image, _, tag = container["image"].rpartition(":")
        assert re.fullmatch(r"v?\d+\.\d+\.\d+[\w.-]*", tag), container["image"]
        assert "." in image.partition("/")[0], "the registry is named"
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    for container in pod["containers"]:
        assert "readinessProbe" in container
        assert ("livenessProbe" in container) == (document.kind != "Job")


@pytest.mark.parametrize("document", named(PODS))
def test_only_exporters_of_nodes_see_the_node(document: Document) -> None:
    """No other pod has a folder, the processes or the network of its node."""
    assert document.pod is not None
    pod = document.pod["spec"]
    open_to_node = any(pod.get(key) for key in ("hostPID", "hostNetwork", "hostIPC")) or any(
        "hostPath" in volume for volume in pod.get("volumes", [])
    )
    assert open_to_node == (document.namespace == "monitoring-nodes")
    mounts = {mount["name"]: mount for container in pod["containers"] for mount in container.get("volumeMounts", [])}
    for volume in pod.get("volumes", []):
        if "hostPath" in volume:
            assert mounts[volume["name"]]["readOnly"]


def test_levels_of_security_of_namespaces() -> None:
    """The strictest one, but for the exporters of nodes."""
    levels = {
        each.name: each.content["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for each in DOCUMENTS
        if each.kind == "Namespace"
    }
    assert levels == {"monitoring": "restricted", "monitoring-nodes": "privileged", "ml-training": "restricted"}
    assert {each.namespace for each in DOCUMENTS if each.kind != "Namespace"} == set(levels)


def test_labels_select_pods_of_their_namespace() -> None:
    """Each workload, service, budget, policy and scrape job selects pods that there are."""
    labels = [(each.namespace, each.pod["metadata"]["labels"]) for each in PODS if each.pod]

    def selects(namespace: str, wanted: dict[str, str]) -> bool:
        return any(place == namespace and wanted.items() <= found.items() for place, found in labels)

    for document in DOCUMENTS:
        spec = document.content.get("spec", {})
        if document.kind in ("StatefulSet", "Deployment", "DaemonSet"):
            assert document.pod is not None
            assert spec["selector"]["matchLabels"].items() <= document.pod["metadata"]["labels"].items()
        elif document.kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            found = spec["podSelector"] if document.kind == "NetworkPolicy" else spec["selector"]
            wanted = found.get("matchLabels", {}) if document.kind != "Service" else found
            assert selects(document.namespace, wanted), (document.kind, document.name)
    for job in prometheus_configuration()["scrape_configs"]:
        for found in job["kubernetes_sd_configs"]:
            (namespace,) = found["namespaces"]["names"]
            for selector in found.get("selectors", []):
                assert selects(namespace, dict([selector["label"].split("=")])), job["job_name"]


def references(document: Document) -> Iterator[tuple[str, str]]:
    """Kind and name of each object that the pods of ``document`` need."""
    assert document.pod is not None
    spec = document.pod["spec"]
    yield "ServiceAccount", spec["serviceAccountName"]
    for volume in spec.get("volumes", []):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]


def test_everything_that_pods_refer_to_is_made() -> None:
    """By a manifest, by a generator of a kustomization, or by a command of the guide."""
    made = {(each.namespace, each.kind, each.name) for each in DOCUMENTS}
    for _, content in kustomizations(FOLDER):
        made |= {(each["namespace"], "ConfigMap", each["name"]) for each in content["configMapGenerator"]}
    by_user = {
        (space, kind, name)
        for kind, option in (("Secret", "create secret generic"), ("PersistentVolumeClaim", "claim"))
        for space, name in re.findall(rf"kubectl -n ([\w-]+) {option} ([\w-]+)", GUIDE)
    }
    by_user.add(("ml-training", "PersistentVolumeClaim", "training"))
    assert "claim named `training`" in GUIDE
    wanted = {(each.namespace, *reference) for each in PODS for reference in references(each)}
    assert wanted - made - by_user == set()
    assert {entry for entry in by_user if entry not in wanted} == set(), "the guide makes nothing that is not needed"


def test_volumes_and_mounts_match() -> None:
    """Each mount has its volume, and each volume is mounted."""
    for document in PODS:
        assert document.pod is not None
        spec = document.pod["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in document.content["spec"].get("volumeClaimTemplates", [])}
        mounts = {
            mount["name"]
            for container in [*spec["containers"], *spec.get("initContainers", [])]
            for mount in container.get("volumeMounts", [])
        }
        assert mounts == volumes, document.name


def test_ports_are_those_of_the_programs() -> None:
    """The port of each service is the default of its program, which the container has too."""
    services = {
        each.name: {port["name"]: port["port"] for port in each.content["spec"]["ports"]}
        for each in DOCUMENTS
        if each.kind == "Service"
    }
    assert services["prometheus"]["http"] == PORTS["prometheus"]
    assert services["alertmanager"]["http"] == PORTS["alertmanager"]
    assert services["probe-serve"]["http"] == PORTS["serve"]
    assert services["remediation"]["http"] == PORTS["remediate"]
    for verb in {"exporter", "serve"} & set(VERBS):
        assert option_of(verb, "listen").default == f"127.0.0.1:{PORTS[verb]}"
    for document in PODS:
        for container in containers(document):
            ports = {port["name"] for port in container["ports"]}
            for kind in ("readinessProbe", "livenessProbe", "startupProbe"):
                assert container.get(kind, {"httpGet": {"port": next(iter(ports))}})["httpGet"]["port"] in ports


def option_of(verb: str, name: str) -> Any:
    """An option of a verb of ``probe``."""
    group: Any = get_command(app)
    command = group.get_command(group.make_context("probe", [verb]), verb)
    (option,) = (each for each in command.params if each.name == name)
    return option


def own_commands() -> Iterator[tuple[str, list[str]]]:
    """Arguments of ``probe`` in each container, also those of lines of a shell."""
    for document in PODS:
        for container in containers(document):
            if container["image"].partition(":")[0].endswith("/probe"):
                assert "command" not in container
                yield document.name, container["args"]
            for line in "\n".join(container.get("command", [])).splitlines():
                if line.startswith("probe "):
                    yield document.name, shlex.split(line.rstrip(" &"))[1:]


OWN = list(own_commands())


def parse(words: list[str]) -> None:
    """Parse arguments as ``probe`` does; an unknown option raises."""
    group: Any = get_command(app)
    context = group.make_context("probe", [words[0]])
    group.get_command(context, words[0]).make_context(words[0], words[1:], parent=context)


def test_the_services_are_started_by_these_files() -> None:
    """So that the test below is about something."""
    assert sorted(words[0] for _, words in OWN) == ["exporter", "exporter", "remediate", "serve"]


@pytest.mark.parametrize(("name", "words"), OWN, ids=[name for name, _ in OWN])
def test_arguments_are_options_of_the_command(name: str, words: list[str]) -> None:
    """Each is understood, nothing is missing, and one that is not there is refused."""
    if words[0] not in VERBS:
        pytest.skip(f"there is no command {words[0]} yet")
    parse(words)
    with pytest.raises(Exception, match="No such option"):
        parse([*words, "--no-such-option"])


def test_configurations_are_understood() -> None:
    """Those of the monitor and of remediation."""
    from probe.core.output.sinks import SINKS

    if "prometheus" in SINKS:
        load(FOLDER / "monitor.yaml")
    content = yaml.safe_load((FOLDER / "remediation-config.yaml").read_text(encoding="utf-8"))
    assert content["dry_run"] is True
    assert content["listen"].endswith(f":{PORTS['remediate']}")
    if "remediate" in VERBS:
        from probe.services.remediation.schema import RemediationSettings

        RemediationSettings.model_validate(content)


def test_files_of_kustomizations_are_there() -> None:
    """Each manifest is listed, apart from the example of a training; each file of a generator exists, and each rule is
    in one."""
    listed = {name for name in next(kustomizations(FOLDER))[1]["resources"] if name.endswith(".yaml")}
    assert listed == {each.file for each in DOCUMENTS} - {"training-job.yaml"}
    for folder, content in kustomizations(FOLDER):
        files = [entry.rpartition("=")[2] for each in content["configMapGenerator"] for entry in each["files"]]
        if folder != FOLDER and not [*folder.glob("*.yml"), *folder.glob("*/*.yml")]:
            continue  # rules and routes are not there yet
        assert [name for name in files if not (folder / name).is_file()] == []
        if folder.name == "prometheus":
            rules = {str(path.relative_to(folder)) for path in (folder / "rules").glob("*.yml")}
            assert rules == set(files)


def test_the_image_is_pinned_and_is_the_version_of_the_package() -> None:
    """Python by its version, no root at the end, and the tag of the manifests is that of this package."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert {*re.findall(r"^FROM (\S+)", text, re.MULTILINE)} == {"python:3.11.11-slim-bookworm"}
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["1000:1000"]
    for source in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        assert [name for name in source.split()[:-1] if not (ROOT / name).exists()] == []
    tags = {
        container["image"].rpartition(":")[2]
        for document in PODS
        for container in containers(document)
        if "/probe:" in container["image"]
    }
    assert tags == {probe.__version__}
