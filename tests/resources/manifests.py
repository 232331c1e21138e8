"""Manifests of Kubernetes under ``resources/kubernetes``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "resources" / "kubernetes"
Manifest = dict[str, Any]


class Document(NamedTuple):
    """A document of a file."""

    file: str
    content: Manifest

    @property
    def kind(self) -> str:
        return str(self.content["kind"])

    @property
    def name(self) -> str:
        return str(self.content["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.content["metadata"].get("namespace", ""))

    @property
    def pod(self) -> Manifest | None:
        """The template of its pods, if it has one."""
        found: Manifest | None = self.content.get("spec", {}).get("template")
        return found if self.kind in WORKLOADS else None


WORKLOADS = ("StatefulSet", "Deployment", "DaemonSet", "Job")


def documents() -> Iterator[Document]:
    """Every manifest; the other files are configurations."""
    for path in sorted(FOLDER.glob("*.yaml")):
        for content in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if "kind" in content and content["kind"] != "Kustomization":
                yield Document(path.name, content)


DOCUMENTS = list(documents())
PODS = [document for document in DOCUMENTS if document.pod is not None]


def kustomizations(folder: Path) -> Iterator[tuple[Path, Manifest]]:
    """The kustomization of ``folder`` and those that it names."""
    content = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    yield folder, content
    for name in content.get("resources", []):
        if (folder / name).is_dir():
            yield from kustomizations((folder / name).resolve())


def containers(document: Document) -> list[Manifest]:
    """The containers that run as long as the pod."""
    assert document.pod is not None
    return list(document.pod["spec"]["containers"])


def prometheus_configuration() -> Manifest:
    """The configuration of Prometheus."""
    found: Manifest = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    return found
