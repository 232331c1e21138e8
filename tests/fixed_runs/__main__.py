"""The command: runs everything with the package of one tree or of two, and prints hashes, or the files that differ."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fixed_runs.contents import content
from tests.fixed_runs.training import CONFIGURATIONS, SHARED
from tests.waiting import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ALONE = tuple(name for name in CONFIGURATIONS if name != SHARED)
FRAMEWORKS = ("pytorch", "mindspore")
ENGINES = ("ddp", "fsdp2", "zero")
RANKS = 2
SECONDS = 300
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("anomalies", "{run}", "--json"),
    ("anomalies", "{run}"),
    ("merge", "{run}", "-o", "{out}/merged"),
    ("csv2db", "{run}", "-o", "{out}/db"),
    ("csv2tb", "{run}", "-o", "{out}/tb"),
    ("report", "{run}", "-o", "{out}/report.html"),
    ("compare", "{run}", "{other}", "--json"),
    ("compare", "{run}", "{other}"),
)
"""Run over what some of the runs have written."""
READ = (
    ("pytorch/alerts", "pytorch/history"),
    ("pytorch/formats", "mindspore/formats"),
    ("mindspore/alerts", "mindspore/micro_batches"),
    ("ddp/shared", "fsdp2/shared"),
    ("zero/shared", "ddp/shared"),
)
"""Over which, each with the one that it is compared with."""


def hashes(tree: Path, root: Path, names: Sequence[str] = (), engines: Sequence[str] = ()) -> dict[str, str]:
    """Runs the fixed runs with the package in ``tree``, below ``root``: the hash of each file's content, by its path.

    Args:
        names: of configurations; empty: all.
        engines: of frameworks and engines; empty: all.
    """
    alone = [name for name in ALONE if not names or name in names]
    for framework in FRAMEWORKS:
        if alone and (not engines or framework in engines):
            _train(tree, [framework, "alone", str(root / framework), *alone])
    for engine in ENGINES:
        if (not names or SHARED in names) and (not engines or engine in engines):
            _train(tree, ["pytorch", engine, str(root / engine), SHARED], RANKS)
    for run, other in READ:
        if (root / run).is_dir() and (root / other).is_dir():
            _read(tree, root / run, root / other, root / "read" / run)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    found: dict[str, str] = {}
    for path in files:
        for name, what in content(path, root):
            while name in found:
                name += "'"  # noqa: PLW2901 - two directories of one run, in the order of time
            found[name] = hashlib.sha256(what).hexdigest()
    return found


def _environment(tree: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "MONITOR", "DYNAMIC"))}
    return kept | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "COLUMNS": "120", "GLOG_v": "4"}


def _train(tree: Path, arguments: Sequence[str], ranks: int = 1) -> None:
    environment = _environment(tree)
    if ranks > 1:
        port = str(free_port())
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
        version = next((Path(sys.prefix) / "versions").glob("deepspeed-0.19*"), None)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(version or ""), str(tree)]))
    command = [sys.executable, str(HERE / "training.py"), *arguments]
    processes = [
        subprocess.Popen(
            command,
            env=environment | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        printed, _ = process.communicate(timeout=SECONDS)
        if process.returncode:
            raise SystemExit(f"{arguments}: exit code {process.returncode}\n{printed}")


def _read(tree: Path, run: Path, other: Path, out: Path) -> None:
    out.mkdir(parents=True)
    places = {"run": str(run), "other": str(other), "out": str(out)}
    for number, command in enumerate(COMMANDS):
        arguments = [part.format(**places) for part in command]
        ran = subprocess.run(
            [sys.executable, "-m", "probe", *arguments],
            env=_environment(tree),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        printed = f"exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        (out / f"{number}-{command[0]}.txt").write_text(printed, encoding="utf-8")


def main() -> int:
    """The exit code: 0 if there is nothing to compare, or nothing differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fixed_runs", description=__doc__)
    parser.add_argument(
        "--tree", type=Path, help="another clone; its package runs as well, and files that differ are named"
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="a folder that keeps what is written, which must not be there"
    )
    parser.add_argument("--only", nargs="*", default=(), help="configurations")
    parser.add_argument("--engines", nargs="*", default=(), help="frameworks and engines")
    arguments = parser.parse_args()
    with TemporaryDirectory() as temporary:
        root = arguments.output or Path(temporary)
        ours = hashes(ROOT, root / "this", arguments.only, arguments.engines)
        if arguments.tree is None:
            sys.stdout.write(json.dumps(ours, indent=1, sort_keys=True) + "\n")
            return 0
        theirs = hashes(arguments.tree.resolve(), root / "other", arguments.only, arguments.engines)
        unlike = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        for name in unlike:
            state = (
                "differs" if name in ours and name in theirs else f"only in {'this' if name in ours else 'the other'}"
            )
            sys.stdout.write(f"{state}: {name}\n")
        sys.stdout.write(f"{len(ours)} files, {len(unlike)} not as in the other tree\n")
        return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
