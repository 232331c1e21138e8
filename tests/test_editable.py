"""An editable install, used from the folder above the clone, where the clone's own folder is called as the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.required import absent, require, require_program

require("setuptools")
require("pip")
require_program("git")
ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / ".git").exists():
    absent("the clone is made of the files that git tracks, and this is no checkout")
pytestmark = pytest.mark.slow

WHICH = "import probe\nfrom probe.core import door\nprint(probe.__file__)\n"
EVERY_COMMAND = """
from typer.testing import CliRunner
from probe.cli import VERBS, app
for verb in VERBS:
    done = CliRunner().invoke(app, [verb, "--help"])
    assert done.exit_code == 0, (verb, done.output)
print(len(VERBS))
"""


class Place(NamedTuple):
    """Folder with a clone called ``probe``, and the Python in which it is installed."""

    folder: Path
    python: Path

    def run(self, *arguments: str, cwd: str = ".", **environment: str) -> str:
        """Standard output of this Python with arguments."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
        done = subprocess.run(
            [str(self.python), *arguments], cwd=self.folder / cwd, env=own, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A clone, installed by pip as the README has it, in an environment with the dependencies of this one."""
    folder = tmp_path_factory.mktemp("above")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if name.partition("/")[0] == "probe" or "/" not in name:
            (folder / "probe" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "probe" / name)
    (folder / "below").mkdir()
    (folder / "train.py").write_text(WHICH)
    (folder / "test_user.py").write_text("def test_import() -> None:\n    import probe\n    assert probe.__version__\n")
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    numpy = find_spec("numpy")
    assert numpy is not None
    assert numpy.origin is not None
    (site / "dependencies.pth").write_text(f"{Path(numpy.origin).parents[1]}\n")  # its own .pth files are not read
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-deps"]
    own = os.environ | {"PROBE_PURE": "1"}
    subprocess.run([*command, "--no-build-isolation", "-e", str(folder / "probe")], env=own, check=True)
    yield Place(folder, python)
    shutil.rmtree(folder)


def test_the_clone_hides_no_package(place: Place) -> None:
    """Scripts, ``-c``, ``-m``, pytest and ``probe run``, in the folder above the clone and below it."""
    package = f"{place.folder / 'probe' / 'probe' / '__init__.py'}\n"
    assert place.run("train.py") == package
    assert place.run("../train.py", cwd="below") == package
    assert place.run("-c", WHICH) == package
    assert place.run("-m", "train") == package
    assert place.run("-m", "probe", "run", "train.py") == package
    assert place.run("-m", "probe", "run", "train.py", PYTHONPATH=str(place.folder)) == package
    assert "1 passed" in place.run("-m", "pytest", "test_user.py", "-p", "no:cacheprovider")


def test_every_command_starts_above_the_clone(place: Place) -> None:
    """By ``python -m``, which searches the current folder first, as well."""
    assert place.run("-m", "probe", "--version").startswith("probe ")
    assert int(place.run("-c", EVERY_COMMAND)) > 10


def test_a_program_of_another_python_is_watched_above_the_clone(place: Place) -> None:
    """The package is not installed there, and the clone's folder, which is on the path, is none."""
    site = place.folder / "probe" / "probe" / "launch" / "site"
    text = "import sys\nprint('probe.launch.preparation' in sys.modules)\n"
    own = {"PYTHONPATH": f"{site}{os.pathsep}{place.folder}", "PROBE_CONFIG": "default"}
    bare = Place(place.folder, Path(sys.base_prefix, "bin", "python3"))
    assert bare.run("-c", text, **own) == "True\n"
