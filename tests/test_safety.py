"""Files that users are sent by others can be opened: nothing in them is run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import probe
from tests.sources import parsed

PACKAGE = Path(probe.__file__).parent
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "subprocess"}
OF_OUR_OWN = {
    "core/output/sinks/tracker.py": "starts python -m probe report",
    "core/run_state/watcher_process.py": "starts python -m probe.services.watcher",
    "launch/parent/trial_program.py": "starts python -m probe run with the command of `probe check`",
    "launch/attach/processes.py": "starts the interpreter of a process, which asks that to run a script",
    "services/exporter/reading_process.py": "starts python -m probe.services.exporter.readings, or --device-command",
    "services/exporter/readings/ascend.py": "starts npu-smi",
    "services/remediation/child_process.py": "starts programs of the configuration's list, never a shell",
    "services/watcher/stacks.py": "starts py-spy",
    "view/background.py": "starts python -m probe.view.background",
}
"""Modules that start a program without a shell, of their own or of its user's choice, with the reason."""
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "system", "popen", "unsafe_load", "full_load", "yaml.load"}


def offences(source: str) -> list[str]:
    """Modules and functions by which ``source`` could run code from a file."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call) and (name := ast.unparse(node.func)) and _forbidden(name):
            found.append(name)
    return found


def _forbidden(name: str) -> bool:
    return name in FORBIDDEN_CALLS or (name.startswith("os.") and name[3:] in FORBIDDEN_CALLS)


def test_no_module_can_run_what_a_file_says() -> None:
    """No pickle, no evaluation of text, no shell."""
    found = {path: offences(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    assert len(found) > 200
    started = {str(path.relative_to(PACKAGE)): names for path, names in found.items() if names}
    assert started == {module: ["subprocess"] for module in OF_OUR_OWN}


@pytest.mark.parametrize(
    "line", ["import pickle", "from subprocess import run", "eval(text)", "os.system(text)", "yaml.load(text)"]
)
def test_an_offence_is_noticed(line: str) -> None:
    """The check itself sees what it looks for."""
    assert len(offences(line)) == 1
