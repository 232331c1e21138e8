"""``make gpu`` without a device: parts within their limits, results written at once, and the reasons of those that need
a device."""

from __future__ import annotations

import json
import os
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.quick_python import quick_python
from tests.required import require

require("torch")
require("triton")
SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "gpu.py"
PARTS = ("moments", "reading", "waits")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, Any]]:
    """Exit code, tables and JSON of some parts on a machine without a device."""
    folder = tmp_path_factory.mktemp("gpu")
    command = [quick_python("torch", "numpy"), SCRIPT, "--output", folder, "--only", *PARTS]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(SCRIPT.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (file,) = folder.glob("*.json")
    assert file.with_suffix(".md").read_text(encoding="utf-8") in done.stdout
    return done.returncode, done.stdout, json.loads(file.read_text(encoding="utf-8"))


def test_parts_without_need_of_a_device_run_by_the_interpreter(result: tuple[int, str, dict[str, Any]]) -> None:
    """The kernels agree with the host for every dtype and op, and there are no times."""
    code, _, found = result
    rows = found["parts"]["moments"]["rows"]
    assert (code, found["parts"]["moments"]["status"]) == (0, "done")
    assert {(row[1], row[-1]) for row in rows[1:]} == {("-", "yes")}
    assert len({row[0].split(":")[0].split(" x ")[-1] for row in rows[1:]}) == 4
    assert found["device"] == "no device (Triton's interpreter)"


def test_parts_that_need_a_device_have_the_reason(result: tuple[int, str, dict[str, Any]]) -> None:
    """In the JSON and in the table."""
    _, out, found = result
    for name in ("reading", "waits"):
        assert found["parts"][name]["status"] == "no device"
        assert "CUDA" in found["parts"][name]["reason"] or "cuda" in found["parts"][name]["reason"]
    assert "**Bandwidth of a plain read** (0 s): no device: torch" in out


def test_rows_before_a_failure_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each row is written when it is there, so that a failure or a limit loses none."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    gpu = import_module("gpu")
    lines = ["def rows(_):", "    yield ['a', 'b']", "    yield ['c', 1.5]", "    raise OSError"]
    (tmp_path / "broken_part.py").write_text("\n".join(lines))
    with pytest.raises(OSError):  # noqa: PT011
        gpu.run_part(gpu.Section("Broken", 1, "broken_part", "rows"), tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    part = {"title": "Broken", "status": "failed with 1", "reason": "OSError", "seconds": 1.0, "rows": rows}
    text = gpu.tables({"device": "d", "time": "t", "commit": "c", "processor": "p", "parts": {"broken": part}})
    assert text.endswith("failed with 1: OSError\n\n| a | b |\n| --- | ---: |\n| c | 1.5 |\n")


def test_a_part_is_ended_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the processes that it began; the limits of all parts together are below fifteen minutes."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    gpu = import_module("gpu")
    shell = ["sh", "-c", "sleep 600 & echo $!; wait"]
    process = subprocess.Popen(shell, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert int(process.stdout.readline())
    assert gpu.ended(process, 0.1) == "stopped after 0 s"
    assert process.returncode == -9
    assert process.stdout.read() == ""  # at its end, since the child has closed it, too
    assert sum(section.limit for section in gpu.SECTIONS.values()) < 15 * 60
