"""Source archive, wheels and bundle: what is in them, that their bytes can be made again, and where they run."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from importlib.metadata import distribution, requires
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.required import absent, require, require_program

require("auditwheel")
require("setuptools")
require_program("git")
ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "resources" / "packages"
if not (ROOT / ".git").exists():
    absent("archives are made of the files that git tracks, and this is no checkout")
pytestmark = pytest.mark.slow

LIBRARY = "probe/core/backend/_fused.so"
SOURCES = {".c", ".po"}
"""Files of which others are made."""
AARCH64 = 183
"""Machine in an ELF header (ELF for the Arm 64-bit Architecture, section 5.3)."""
LOAD = """
import array, ctypes, sys
numbers, row = array.array("f", [1, 2, 3, -4.5]), (ctypes.c_double * 9)()
function = ctypes.CDLL(sys.argv[1]).probe_row
function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_double, ctypes.c_int, ctypes.c_void_p)
print(function(numbers.buffer_info()[0], len(numbers), 0, 0.0, 0, ctypes.addressof(row)), *row[:4])
"""
WHERE = """
import probe
from probe.core.backend import fused_reduce
print(probe.__file__, fused_reduce.available)
"""


class Archives(NamedTuple):
    """Folders with the archives of the same files: made here and, without those for other machines, elsewhere."""

    here: Path
    elsewhere: Path

    def one(self, ending: str) -> Path:
        """The archive whose name has this ending."""
        (found,) = self.here.glob(f"*{ending}")
        return found


def tracked(*paths: str) -> list[str]:
    """Paths of the files in this checkout that git tracks."""
    return subprocess.check_output(["git", "ls-files", "-z", *paths], cwd=ROOT, text=True).rstrip("\0").split("\0")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """Both, made at the same time: the other one in a deeper folder of new files with other habits of a user."""
    folder = tmp_path_factory.mktemp("archives")
    clone = folder / "a longer way" / "to" / "probe"
    for path in tracked("probe", "resources/packages", "tests/*.py", ":(glob)*"):
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, clone / path)
        (clone / path).chmod(0o600)
    for command in (["git", "init", "-q"], ["git", "add", "-A", "-f"]):
        subprocess.run(command, cwd=clone, check=True)
    others = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": str(clone)}
    made = Archives(folder / "here", folder / "elsewhere")
    machine = ["--machine", platform.machine()]
    running = [_making(ROOT, made.here, [], {}), _making(clone, made.elsewhere, machine, others, umask=0o077)]
    for process in running:
        assert process.wait() == 0
    return made


def _making(
    root: Path, output: Path, more: list[str], environment: Mapping[str, str], umask: int = 0o022
) -> subprocess.Popen[bytes]:
    command = [sys.executable, root / "resources" / "packages" / "make.py", "--output", output, *more]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **environment}
    return subprocess.Popen(command, cwd=output.parent, env=variables, umask=umask, stdout=subprocess.DEVNULL)


def run_in(target: Path, code: str) -> list[str]:
    """Words that ``code`` prints with the packages of ``target`` before all others."""
    environment = {**os.environ, "PYTHONPATH": str(target)}
    return subprocess.check_output([sys.executable, "-c", code], cwd=target, env=environment, text=True).split()


def test_the_same_files_make_the_same_bytes(archives: Archives) -> None:
    """Whichever the folder, the times and modes of the files, the user's mask, time zone and language."""
    made = sorted(archives.elsewhere.iterdir())
    endings = [f"manylinux2014_{platform.machine()}.whl", ".tar.gz"]
    assert [name for each, name in zip(made, endings, strict=True) if each.name.endswith(name)] == endings
    assert {each.name: each.read_bytes() == (archives.here / each.name).read_bytes() for each in made} == dict.fromkeys(
        [each.name for each in made], True
    )


def test_every_file_that_the_program_opens_is_in_the_wheels(archives: Archives) -> None:
    """All that the package has in the repository; the library where there is one, and no other file."""
    expected = {path for path in tracked() if path.startswith("probe/") and Path(path).suffix not in SOURCES}
    assert {Path(path).suffix for path in expected} >= {".py", ".js", ".css", ".html", ".typed"}
    for wheel in archives.here.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            found = {path for path in packed.namelist() if ".dist-info/" not in path}
        assert found == (expected if wheel.name.endswith("any.whl") else expected | {LIBRARY})


def test_the_source_archive_has_all_that_a_build_needs(archives: Archives) -> None:
    """The whole package, its licence and its history, and no file of another user or time."""
    with tarfile.open(archives.one(".tar.gz")) as packed:
        members = packed.getmembers()
    names = {each.name.partition("/")[2] for each in members}
    assert names >= {path for path in tracked() if path.startswith("probe/")}
    assert names >= {"setup.py", "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff"}
    assert not [name for name in names if name.startswith(("tests", ".", "docs"))]
    assert {(each.uid, each.gid, each.uname, each.gname, each.mtime) for each in members} == {
        (0, 0, "", "", 1700000000)
    }
    assert {each.mode for each in members} == {0o755, 0o644}


def test_the_library_is_of_no_python(archives: Archives, tmp_path: Path) -> None:
    """No folder of this interpreter is in it, and every Python of this machine computes with it."""
    with zipfile.ZipFile(archives.one(f"manylinux2014_{platform.machine()}.whl")) as packed:
        library = packed.extract(LIBRARY, tmp_path)
    assert not re.search(rb"python|\.pyenv", Path(library).read_bytes(), re.IGNORECASE)
    others = sorted(Path.home().glob(".pyenv/versions/3.1[0-9].*/bin/python3"))
    for interpreter in {sys.executable, *map(str, others)}:
        assert subprocess.check_output([interpreter, "-I", "-c", LOAD, library], text=True).split() == [
            *("1", "-4.5", "3.0", "1.5", str(1 + 4 + 9 + 20.25))
        ], interpreter


def test_a_wheel_for_another_machine_is_made_by_its_compiler(archives: Archives) -> None:
    """Its library is of that machine, and needs as little of a system."""
    if platform.machine() != "aarch64":
        require_program("aarch64-linux-gnu-gcc")
    with zipfile.ZipFile(archives.one("manylinux2014_aarch64.whl")) as packed:
        header = packed.read(LIBRARY)[:20]
    assert (header[:4], int.from_bytes(header[18:20], "little")) == (b"\x7fELF", AARCH64)


def test_the_source_archive_is_built_without_a_compiler(archives: Archives, tmp_path: Path) -> None:
    """As pip builds it: the wheel is not one of this platform, and the program runs from it without the library."""
    with tarfile.open(archives.one(".tar.gz")) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(tmp_path)
    (tree,) = tmp_path.iterdir()
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    environment = {**os.environ, "CC": "/bin/false"}
    subprocess.run([sys.executable, "-c", code], cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    target = tmp_path / "target"
    with zipfile.ZipFile(wheel) as packed_wheel:
        packed_wheel.extractall(target)
    assert run_in(target, WHERE) == [str(target / "probe" / "__init__.py"), "False"]


def wheel_of(name: str, folder: Path) -> None:
    """Write the installed distribution ``name`` as a wheel without its tests, and those that it needs."""
    found = distribution(name)
    title = f"{found.metadata['Name'].replace('-', '_')}-{found.version}"
    tags = re.findall(r"^Tag: (.+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    python, abi, platforms = ({tag.split("-")[place] for tag in tags} for place in range(3))
    path = folder / f"{title}-{'.'.join(sorted(python))}-{'.'.join(sorted(abi))}-{'.'.join(sorted(platforms))}.whl"
    if path.exists():
        return
    with zipfile.ZipFile(path, "w") as packed:
        for file in found.files or ():
            if file.suffix != ".pyc" and not {"..", "tests"} & {*file.parts}:
                packed.write(str(found.locate_file(file)), str(file))
    for line in requires(name) or ():
        requirement = require("packaging.requirements").Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            wheel_of(requirement.name, folder)


def test_a_bundle_is_installed_without_an_index_and_a_compiler(archives: Archives, tmp_path: Path) -> None:
    """Everything that a feature needs is in its folder: the command there installs it, and the program runs from it."""
    stock = tmp_path / "stock"
    stock.mkdir()
    for name in ("numpy", "pyyaml", "pydantic", "typer", "rich", "tensorboardX"):
        wheel_of(name, stock)
    command = [sys.executable, TOOLS / "bundle.py", "--dist", archives.here, "--output", tmp_path]
    pip = ["--quiet", "--no-index", "--find-links", stock]
    subprocess.run([*command, "--extras", "tensorboard", "--", *pip], check=True)
    (folder,) = tmp_path.glob("probe-monitor-*-bundle")
    shutil.rmtree(stock)
    assert len(list(folder.glob("wheels/probe_monitor-*manylinux*.whl"))) == 1
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    target = tmp_path / "target"
    install = ["sh", str(folder / "install.sh"), "--quiet", "--no-compile", "--target", str(target)]
    subprocess.run(install, env={**os.environ, "PYTHON": sys.executable, "CC": "/bin/false"}, check=True)
    *found, compiled = run_in(
        target, "import numpy, tensorboardX; print(numpy.__file__, tensorboardX.__file__)" + WHERE
    )
    assert found == [str(target / name / "__init__.py") for name in ("numpy", "tensorboardX", "probe")]
    assert compiled == "True"
    assert (
        run_in(target, "import sys; from probe.cli import main; sys.argv = ['probe', '--version']; main()")[0]
        == "probe"
    )
