"""Resources for Ray: the RayJob's pods against the schemas of Kubernetes, the cluster file against Ray's own."""

from __future__ import annotations

import copy
import re
import shlex
import subprocess
from typing import Any

import pytest
import yaml
from typer.main import get_command

from probe.cli import app
from tests.required import require
from tests.resources.manifests import ROOT

kubernetes_validate = require("kubernetes_validate")

FOLDER = ROOT / "resources" / "ray"
VERSIONS = ("1.25", "1.37")
JOB: dict[str, Any] = yaml.safe_load((FOLDER / "rayjob.yaml").read_text(encoding="utf-8"))
SPEC = {
    *("entrypoint", "submissionMode", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "activeDeadlineSeconds"),
    *("backoffLimit", "rayClusterSpec"),
}
CLUSTER = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
HEAD = {"rayStartParams", "template"}
WORKERS = {*HEAD, "groupName", "replicas", "minReplicas", "maxReplicas"}
"""Fields of KubeRay's RayJob (ray.io/v1) that the file uses: another one is a mistake."""


def groups() -> list[dict[str, Any]]:
    cluster = JOB["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def pod(group: dict[str, Any]) -> dict[str, Any]:
    """The pod of a group as a manifest of its own."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **copy.deepcopy(group["template"])}


def options(command: str, words: list[str]) -> set[str]:
    """Options among ``words`` that a verb of probe does not have."""
    verb = get_command(app)
    found = verb.get_command(verb.make_context("probe", [command]), command)
    known = {name for parameter in found.params for name in parameter.opts}
    return {word for word in words if word.startswith("-")} - known


def test_the_rayjob_has_known_fields_alone() -> None:
    """KubeRay's schema is no package: the fields are listed here."""
    cluster = JOB["spec"]["rayClusterSpec"]
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert set(JOB) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(JOB["spec"]) <= SPEC
    assert set(cluster) <= CLUSTER
    assert set(cluster["headGroupSpec"]) <= HEAD
    for group in cluster["workerGroupSpecs"]:
        assert set(group) <= WORKERS
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert all(isinstance(value, str) for group in groups() for value in group["rayStartParams"].values())


@pytest.mark.parametrize("version", VERSIONS)
def test_its_pods_are_valid(version: str) -> None:
    """Strictly: a key that the schema does not know is an error, as a misspelt one shows."""
    for group in groups():
        kubernetes_validate.validate(pod(group), version, strict=True)
    broken = pod(groups()[0])
    broken["spec"]["containers"][0]["volumeMount"] = broken["spec"]["containers"][0].pop("volumeMounts")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_its_pods_have_few_rights_and_volumes_that_are_there() -> None:
    """And the same image and mounts in head and workers."""
    for group in groups():
        spec = group["template"]["spec"]
        [container] = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in spec["volumes"]}
        assert next(m for m in container["volumeMounts"] if m["name"] == "training")["readOnly"] is True
        assert container["resources"]["limits"].keys() == {"cpu", "memory", "ephemeral-storage"}
    assert len({group["template"]["spec"]["containers"][0]["image"] for group in groups()}) == 1


def test_its_command_is_one_of_probe() -> None:
    """With options that there are."""
    program, verb, *words = shlex.split(JOB["spec"]["entrypoint"])
    assert program == "probe"
    assert options(verb, words) == set()


def test_the_script_of_slurm_is_a_shell_script() -> None:
    """With options of Ray's command that there are."""
    script = FOLDER / "probe.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text(encoding="utf-8")
    assert options("sql", ["--map", "--reduce", "--engine"]) == set()
    scripts = pytest.importorskip("ray.scripts.scripts")
    used = set(re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE))
    known = {
        option for each in ("symmetric-run", "start") for p in scripts.cli.commands[each].params for option in p.opts
    }
    assert used
    assert used <= known


def test_the_cluster_file_is_one_of_ray() -> None:
    """By the schema that `ray up` applies."""
    util = pytest.importorskip("ray.autoscaler._private.util")
    config = yaml.safe_load((FOLDER / "cluster.yaml").read_text(encoding="utf-8"))
    util.validate_config(util.prepare_config(config))
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
