"""Discovery of pods by Prometheus in Kubernetes: its rights, and which targets are left, with Prometheus' own code."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.required import require_program
from tests.resources.manifests import (
    DOCUMENTS,
    PODS,
    Document,
    Manifest,
    containers,
    prometheus_configuration,
)


def test_prometheus_may_read_pods_of_three_namespaces_and_nothing_else() -> None:
    """Roles in namespaces, none of the cluster; every namespace of the configuration has one."""
    assert not [each for each in DOCUMENTS if each.kind.startswith("ClusterRole")]
    roles = {each.namespace: each.content["rules"] for each in DOCUMENTS if each.kind == "Role"}
    only = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert roles == dict.fromkeys(("monitoring", "monitoring-nodes", "ml-training"), only)
    bindings = [each for each in DOCUMENTS if each.kind == "RoleBinding"]
    assert sorted(each.namespace for each in bindings) == sorted(roles)
    for binding in bindings:
        assert binding.content["roleRef"]["name"] == "pod-discovery"
        assert binding.content["subjects"] == [
            {"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"}
        ]
    searched = {
        namespace
        for job in prometheus_configuration()["scrape_configs"]
        for found in job["kubernetes_sd_configs"]
        for namespace in found["namespaces"]["names"]
    }
    assert searched == set(roles)


def test_every_annotated_pod_is_scraped_at_a_port_that_it_has() -> None:
    """The annotation names a port of one of its containers, and a policy lets Prometheus in."""
    open_ports = {
        (each.namespace, port["port"])
        for each in DOCUMENTS
        if each.kind == "NetworkPolicy"
        for rule in each.content["spec"].get("ingress", [])
        for port in rule.get("ports", [])
        if any("prometheus" in str(source) for source in rule["from"])
    }
    for document in PODS:
        assert document.pod is not None
        annotations = document.pod["metadata"]["annotations"]
        port = int(annotations["prometheus_io_port"])
        assert annotations["prometheus_io_scrape"] == "true"
        assert port in {each["containerPort"] for box in containers(document) for each in box["ports"]}
        assert (document.namespace, port) in open_ports, document.name


def discovered(document: Document, **changes: str) -> Iterator[Manifest]:
    """Targets of a pod as kubernetes_sd finds them: one for each port of its containers."""
    assert document.pod is not None
    labels = {
        "__meta_kubernetes_namespace": document.namespace,
        "__meta_kubernetes_pod_name": document.name,
        "__meta_kubernetes_pod_node_name": "node-1",
        "__meta_kubernetes_pod_phase": "Running",
    }
    for kind in ("annotations", "labels"):
        for name, value in document.pod["metadata"][kind].items():
            labels[f"__meta_kubernetes_pod_{kind.removesuffix('s')}_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}"] = value
    for container in containers(document):
        for port in container["ports"]:
            number = str(port["containerPort"])
            own = {"__meta_kubernetes_pod_container_port_number": number}
            yield {"targets": [f"10.0.0.1:{number}"], "labels": labels | own | changes}


def scraped(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Labels of the targets that are left in each scrape job, as promtool finds them."""
    configuration, promtool = prometheus_configuration(), require_program("promtool")
    configuration["rule_files"] = []
    scrape, phase = "__meta_kubernetes_pod_annotation_prometheus_io_scrape", "__meta_kubernetes_pod_phase"
    for job in configuration["scrape_configs"]:
        (found,) = job.pop("kubernetes_sd_configs")
        wanted = dict(selector["label"].split("=") for selector in found.get("selectors", []))
        job["static_configs"] = [
            target
            for document in PODS
            if document.pod is not None
            and [document.namespace] == found["namespaces"]["names"]
            and wanted.items() <= document.pod["metadata"]["labels"].items()
            for changes in ({}, {scrape: "false"}, {scrape: ""}, {phase: "Succeeded"}, {phase: "Failed"})
            for target in discovered(document, **changes)
        ]
        if "authorization" in job:
            mounted = Path(job["authorization"]["credentials_file"]).parent
            (prometheus,) = (each for each in PODS if each.name == "prometheus")
            assert str(mounted) in {mount["mountPath"] for mount in containers(prometheus)[0]["volumeMounts"]}
            job["authorization"]["credentials_file"] = str(folder / "token")
    (folder / "token").write_text("token")
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(configuration))
    subprocess.run([promtool, "check", "config", path], check=True, capture_output=True)
    command = [promtool, "check", "service-discovery", "--timeout=200ms", path]
    running = {
        job["job_name"]: subprocess.Popen([*command, job["job_name"]], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for job in configuration["scrape_configs"]
    }
    answers = {name: process.communicate()[0] for name, process in running.items()}
    return {name: [each["labels"] for each in json.loads(text) if each["labels"]] for name, text in answers.items()}


def test_prometheus_keeps_the_annotated_port_of_each_running_pod(tmp_path: Path) -> None:
    """With Prometheus' own code and the labels that Kubernetes would give it: one target for each pod that has the
    annotation and runs, and joined labels of ranks and GPUs."""
    found = scraped(tmp_path)
    assert {name: [target["__address__"] for target in targets] for name, targets in found.items()} == {
        "training-pods": ["10.0.0.1:9445"],
        "probe-exporter": ["10.0.0.1:9445"],
        "node-exporter": ["10.0.0.1:9100"],
        "probe-serve": ["10.0.0.1:8765"],
        "prometheus": ["10.0.0.1:9090"],
        "alertmanager": ["10.0.0.1:9093"],
        "remediation": ["10.0.0.1:9095"],
    }
    (rank,), (node,) = found["training-pods"], found["probe-exporter"]
    assert rank["instance"] == node["instance"] == "node-1:9445"
    assert rank["job"] == node["job"] == "probe-exporter"
    assert (rank["pod"], rank["namespace"], rank["node"]) == ("training-demo", "ml-training", "node-1")
    assert rank["__metrics_path__"] == "/metrics"


def test_prometheus_scrapes_with_the_limits_and_the_retention_that_are_promised() -> None:
    """Thirty days and a size below that of the disk; alerts of both are the same alerts to Alertmanager; every target
    needs the annotation."""
    (prometheus,) = (each for each in PODS if each.name == "prometheus")
    flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in containers(prometheus)[0]["args"])
    (claim,) = prometheus.content["spec"]["volumeClaimTemplates"]
    assert flags["storage.tsdb.retention.time"] == "30d"
    disk = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) * 2**30
    assert int(flags["storage.tsdb.retention.size"].removesuffix("GB")) * 2**30 < 0.9 * disk
    assert "web.enable-lifecycle" in flags
    configuration = prometheus_configuration()
    assert configuration["global"]["external_labels"]["replica"] == "${REPLICA}"
    assert {"name": "REPLICA"}.items() <= containers(prometheus)[0]["env"][0].items()
    assert flags["enable-feature"] == "expand-external-labels"
    assert {"regex": "replica", "action": "labeldrop"} in configuration["alerting"]["alert_relabel_configs"]
    keep = {
        "source_labels": ["__meta_kubernetes_pod_annotation_prometheus_io_scrape"],
        "regex": "true",
        "action": "keep",
    }
    for job in configuration["scrape_configs"]:
        assert keep in job["relabel_configs"], job["job_name"]
        assert re.fullmatch(r"\d+s", job["scrape_interval"])
        assert 1 <= int(job["scrape_interval"][:-1]) <= 60
    (rules,) = configuration["rule_files"]
    mounts = {mount["mountPath"]: mount["name"] for mount in containers(prometheus)[0]["volumeMounts"]}
    assert mounts[str(Path(rules).parent)] == "rules"
    assert mounts[str(Path(flags["config.file"]).parent)] == "configuration"
