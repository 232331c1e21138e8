"""Reading and comparing take as much memory for many steps as for a few."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

FEW, MANY, ROWS, A_FILE = 100, 3000, 100, 50
"""Steps, steps, rows of a step, steps of a file. The many are 30 MB of text."""
MIB = 1 << 20

READ = """
import json, re, sys
from pathlib import Path
from probe.core.storage.batches import steps
from probe.core.storage.directories import last_run
from probe.core.storage.csv_reader import PlainRows
from probe.core.storage.problems import Problems
from probe.core.storage.duckdb_reader import Rows, connect

way, root = sys.argv[1], Path(sys.argv[2])
if way == "compare":
    from probe.core.analysis.compare import compared_piece
    from probe.core.analysis.compare.compare import compare

    compared_piece.MOST_BYTES = 1 << 21
    number = compare(root, root).rows
else:
    problems = Problems()
    directories = last_run(root, problems).directories
    rows = Rows(directories, problems, connect(threads=1)) if way == "duckdb" else PlainRows(directories, problems)
    number = sum(len(batch) for step in steps(rows, 0) for batch in step.batches)
# ru_maxrss would include what the process that started this one held
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
print(json.dumps([number, int(peak[1]) * 1024]))
"""


def write(root: Path, steps: int) -> Path:
    directory = root / "Dec03_21-34-40-rank0-00000000"
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(json.dumps({"rank": 0, "world_size": 1}), encoding="utf-8")
    for first in range(0, steps, A_FILE):
        lines = [
            f'0,layers.{row}.projection.weight,{step},{step + row / 7:.6g},0.123456,-7.65432,9.87654,"[64, 64]",'
            "torch.float32\n"
            for step in range(first, first + A_FILE)
            for row in range(ROWS)
        ]
        text = "vpp_stage,name,step,norm,mean,min,max,shape,dtype\n" + "".join(lines)
        (directory / f"grad_reduced_{first}-{first + A_FILE - 1}.csv").write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("runs")
    return write(root / "few", FEW), write(root / "many", MANY)


def peak(way: str, root: Path) -> tuple[int, int]:
    """The rows read, and the bytes that a process of its own held at most."""
    done = subprocess.run([sys.executable, "-c", READ, way, str(root)], capture_output=True, text=True, check=True)
    number, held = json.loads(done.stdout)
    return number, held


@pytest.mark.parametrize(("way", "more"), [("duckdb", 48), ("python", 16), ("compare", 64)])
def test_memory_does_not_grow_with_steps(sizes: tuple[Path, Path], way: str, more: int) -> None:
    """Thirty times the steps take no more than ``more`` MiB besides; compared in one piece they take 160."""
    (few, low), (many, high) = (peak(way, root) for root in sizes)
    assert (few, many) == (FEW * ROWS, MANY * ROWS)
    assert high - low < more * MIB, f"{low / MIB:.0f} MiB, then {high / MIB:.0f} MiB"
