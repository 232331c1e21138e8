"""Source archive and wheels: the same bytes wherever and whenever they are made of the same files.

    make dist                             or: python resources/packages/make.py --output dist

Wheels are built from the source archive: one for this machine, one for each other machine of `COMPILERS` whose
compiler is installed, and one without a library for all others. Only files that git tracks are in them. Their times are
SOURCE_DATE_EPOCH, or that of the last commit.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = {"x86_64": "x86_64-linux-gnu-gcc", "aarch64": "aarch64-linux-gnu-gcc"}
"""Machines for which there are wheels with a library, and the compiler for each on another machine."""
MACHINES = ("any", *COMPILERS)
PLATFORM = "manylinux2014_{machine}"
BUILD = """
import json, sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2], json.loads(sys.argv[3]))
"""


def main() -> None:
    """Make all of them, and their hashes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder for the archives")
    parser.add_argument("--machine", action="append", choices=MACHINES, help="only a wheel for this one; repeatable")
    arguments = parser.parse_args()
    os.umask(0o022)  # modes are in the archives
    arguments.output.mkdir(parents=True, exist_ok=True)
    for made in make(arguments.output.resolve(), arguments.machine or MACHINES):
        print(f"{hashlib.sha256(made.read_bytes()).hexdigest()}  {made.name}", flush=True)


def make(output: Path, machines: Sequence[str]) -> Iterator[Path]:
    """Yield the archives of the package for ``machines`` in ``output``, each when it is there."""
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch())
    with tempfile.TemporaryDirectory() as temporary:
        source = source_archive(Path(temporary), output)
        yield source
        yield from filter(None, (wheel_for(machine, source, output) for machine in machines))


def wheel_for(machine: str, source: Path, output: Path) -> Path | None:
    """Build the wheel for a machine; None if there is no compiler for it."""
    if machine == "any":
        return wheel(source, output, {"PROBE_PURE": "1"})
    compiler = os.environ.get("CC", "cc") if machine == platform.machine() else COMPILERS[machine]
    if shutil.which(compiler.split()[0]) is None:
        print(f"no wheel for {machine}: {compiler} is not installed", file=sys.stderr)
        return None
    made = wheel(source, output, {"CC": compiler}, PLATFORM.format(machine=machine))
    verify(made)
    return made


def epoch() -> int:
    """The time that is written into the archives, in seconds."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))


def git(*arguments: str) -> str:
    """Return the output of git on this checkout."""
    return run("git", *arguments, cwd=ROOT)


def run(*command: str, cwd: Path, environment: Mapping[str, str] = {}) -> str:
    """Return the standard output of a program. Its whole output is shown if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed in {cwd}:\n{done.stdout}{done.stderr}")
    return done.stdout


def source_archive(temporary: Path, output: Path) -> Path:
    """Write the source archive, whose entries have an order, an owner and a time of their own."""
    tree = temporary / "tree"
    for path in filter(None, git("ls-files", "-z").split("\0")):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tree / path)
    build("build_sdist", tree, temporary)
    (made,) = temporary.glob("*.tar.gz")
    plain = io.BytesIO()
    with tarfile.open(made) as read, tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as write:
        for entry in sorted(read.getmembers(), key=lambda each: each.name):
            write.addfile(anonymous(entry), read.extractfile(entry) if entry.isfile() else None)
    with (output / made.name).open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch()) as packed:
        packed.write(plain.getvalue())
    return output / made.name


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Strip what depends on a machine from ``entry``."""
    entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime = 0, 0, "", "", epoch()
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    entry.pax_headers = {}
    return entry


def wheel(source: Path, output: Path, environment: Mapping[str, str], tag: str = "any") -> Path:
    """Build a wheel from the source archive with variables of ``environment``. It gets ``tag`` if it has a library."""
    settings = {} if tag == "any" else {"--build-option": ["--plat-name", tag]}
    with tempfile.TemporaryDirectory() as temporary:
        with tarfile.open(source) as packed:
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 or later has it
            packed.extractall(temporary)  # noqa: S202 - it was made just now
        (tree,) = Path(temporary).iterdir()
        build("build_wheel", tree, output, environment, settings)
    made = output / f"{source.name.removesuffix('.tar.gz')}-py3-none-{tag}.whl"
    if not made.exists():
        raise SystemExit(f"no {made.name}: {environment['CC']} compiled no library from {source.name}")
    return made


def build(
    hook: str, tree: Path, output: Path, environment: Mapping[str, str] = {}, settings: Mapping[str, object] = {}
) -> None:
    """Call a hook of the build backend in ``tree``."""
    run(sys.executable, "-c", BUILD, hook, str(output), json.dumps(settings), cwd=tree, environment=environment)


def verify(made: Path) -> None:
    """Stop if the library in a wheel needs anything of a system, by the judgement of auditwheel."""
    shown = " ".join(run(sys.executable, "-m", "auditwheel", "show", str(made), cwd=made.parent).split())
    if "no external versioned symbols" not in shown or "no external shared libraries" not in shown:
        raise SystemExit(f"{made.name}: {shown}")


if __name__ == "__main__":
    main()
