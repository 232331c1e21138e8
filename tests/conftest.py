"""Fixtures of every test."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FOLDERS = {
    "distributed": "torch",
    "mindspore": "mindspore",
    "pytorch": "torch",
    "journeys": "",
    "view": "",
    "matrix": "",
    "resources": "",
    "launch": "",
    "": "",
    "contract": "",
    "core": "",
    "services": "",
    "cli": "",
    "agents": "",
}
"""Those whose files take longest first, so that processes side by side end together; the framework that each needs."""
LONGEST = (
    "core/storage/test_object_storage.py",
    "contract/test_moments.py",
    "launch/test_parent.py",
    "core/trackers/test_wandb.py",
    "core/analysis/test_report_browser.py",
    "launch/test_closing_report.py",
    "core/trackers/test_other_trackers.py",
    "cli/test_pack_cli.py",
    "core/alerting/test_internevo.py",
    "core/storage/test_packed_run.py",
    "core/analysis/test_causes.py",
    "agents/test_diagnosis_by_agent.py",
    "core/storage/test_pack.py",
    "cli/test_compare_cli.py",
    "cli/test_causes_cli.py",
)
"""Files of more than ten seconds in folders of shorter ones, which come after ``distributed``."""
LIBRARIES = (
    "deep_signals",
    "deepspeed",
    "global_stats",
    "megatron",
    "outcomes",
    "run_parallel",
    "transformers",
    "unlike_ranks",
    "wrapped_signals",
)
"""Files of ``distributed`` whose ranks train with DeepSpeed or Megatron-Core: one process runs them all, since imports
of these take long."""
MEMORY, ROOM = Path("/dev/shm"), 4 << 30
"""Where folders of tests are made, in a file system of which so many bytes are free."""
FRAMEWORKS = {"pytorch": "torch", "mindspore": "mindspore"}
"""The package of each framework of the matrix."""
SOURCES = ("core/test_child_process", "core/test_naming", "test_door", "test_layering", "test_safety", "test_words")
FORKING = ("journeys/test_port", "pytorch/test_one_command", "pytorch/test_tutorials")
TORCH = ("pytorch/test_multi_tensor", "test_contributing", "test_gpu_parts")
TRAINERS = ("journeys/test_trainer", "pytorch/test_run_trainers")
TOGETHER = {
    **{f"tests/distributed/test_{name}.py": "libraries" for name in LIBRARIES},
    **{f"tests/{name}.py": "sources" for name in SOURCES},
    **{f"tests/{name}.py": "torch" for name in TORCH},
    **{f"tests/{name}.py": "mindspore" for name in (*FORKING, *TRAINERS)},
}
"""Files that one process runs, by the name of what is made once for them: imports of training libraries, trees of the
package's sources, and the processes that have imported what programs of torch, of MindSpore
and of trainers need."""
FOLDERS_TOGETHER = ("distributed", "mindspore")
"""Folders of which one process runs all other files: processes that have imported what these need are made once."""

LONGEST_FOLDER = 70
"""The address of a socket in it is at most 107 bytes."""

# A shell that runs the tests in the background has them ignore it, and so every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Each test has a folder, and many sync files: on a disk, a test of a few milliseconds takes twice the time for that.
if os.access(MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Commands that tests start print English, whatever the language of the machine.
os.environ["LANGUAGE"] = "en"

# Otherwise threads of MindSpore's queues of operators spin: ten times the CPU of a small step (2.10.0). All of `make
# test-versions` trains with the queues, and here some programs.
os.environ.setdefault("MS_DEV_HOST_BLOCKING_RUN", "1")


@pytest.fixture(autouse=True)
def output_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where monitors of this test write by default: never the repository."""
    path = tmp_path / "monitor_output"
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(path))
    return path


@pytest.fixture(autouse=True, scope="session")
def _quick_workers(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Processes of ``multiprocessing`` are forked from one that has imported what they need; processes of xdist have
    such servers together."""
    from tests import user_scripts
    from tests.quick_python import quick_python

    folder = tmp_path_factory.getbasetemp().parent / "forks"
    if hasattr(pytestconfig, "workerinput") and len(str(folder)) < LONGEST_FOLDER:
        folder.mkdir(exist_ok=True)
        user_scripts.shared = folder
    multiprocessing.set_executable(quick_python(*user_scripts.WORKERS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by the framework that they need, and brings them in the order of their folders."""
    for item in items:
        if package := FOLDERS.get(_names(item.path)[1]) or _package(item):
            item.add_marker(package)
    places = ["distributed", *LONGEST, *FOLDERS]
    items.sort(key=lambda item: next(map(places.index, filter(places.__contains__, _names(item.path))), len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files to processes, but for those that one process is to run together."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):  # type: ignore[misc]
        """Takes some files for one. The test in which a process dies fails, and the others of its file are run by
        another process: without the changes here that one would be sent the same test again, or a file of which
        nothing is left or a single test, and wait for more for ever (pytest-xdist 3.8.0)."""

        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return TOGETHER.get(file, next((each for each in FOLDERS_TOGETHER if f"tests/{each}/" in file), file))

        def remove_node(self, node: Any) -> str | None:
            files = {
                file: [test for test, done in tests.items() if not done]
                for file, tests in self.assigned_work[node].items()
            }
            crashed: str | None = next((tests.pop(0) for tests in files.values() if tests), None)
            self.assigned_work[node] = {file: dict.fromkeys(tests, False) for file, tests in files.items() if tests}
            super().remove_node(node)
            return crashed

        def _reschedule(self, node: Any) -> None:
            if node not in self.registered_collections:  # it has just replaced one that died, and still collects
                return
            super()._reschedule(node)
            if self.workqueue and self._pending_of(self.assigned_work[node]) == 1:
                super()._reschedule(node)  # a process runs a test once it knows the next

    return Together(config, log)


def pytest_collection_finish() -> None:
    """Leaves what imports and the collection have made, which stays to the end, out of every collection of garbage."""
    gc.collect()
    gc.freeze()


@cache
def _names(path: Path) -> tuple[str, str]:
    """The path of a test's file in this folder, and the folder below this one that has it; empty beside it."""
    inside = path.relative_to(HERE) if path.is_relative_to(HERE) else Path()
    return inside.as_posix(), inside.parts[0] if len(inside.parts) > 1 else ""


def _package(item: pytest.Item) -> str:
    """The package of the framework that a test of the matrix runs on; empty for the toy and where there is none."""
    given = item.callspec.params.values() if _names(item.path)[1] == "matrix" and hasattr(item, "callspec") else ()
    return next((FRAMEWORKS[value] for value in given if isinstance(value, str) and value in FRAMEWORKS), "")
