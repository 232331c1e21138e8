"""Command of a child process that runs a module of this very package, whatever the current directory has.

``python -m probe...`` searches the current directory first: a folder ``probe`` in it, such as a clone beside the run,
hides the package. ``python -P`` does not, but exists from Python 3.11 on, and finds only what is installed. So children
run this file by its path: it imports the package from the folder it lies in, and then runs the module.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):  # noqa: PTH120
    del sys.path[0]  # the folder of this file: its modules would hide others

import importlib.util
import runpy
import shutil
from pathlib import Path

FILE = Path(__file__).absolute()
PACKAGE = FILE.parent.parent
"""Folder of the package that runs here."""


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package in another process, as ``python -m`` would.

    Neither the current directory nor the folder of a script is searched for modules by it.

    Args:
        module: dotted name, such as ``probe`` or ``probe.view.background``.
        arguments: its arguments.
    """
    return [sys.executable or shutil.which("python3") or "python3", str(FILE), module, *arguments]


def import_package(package: Path = PACKAGE) -> None:
    """Import the package that lies in the folder ``package``, unless it is imported; modules below it come from there.

    The search path gets the folder above, as its last entry: processes that the standard library starts search there.
    """
    name, source = package.name, str(package / "__init__.py")
    if getattr(sys.modules.get(name), "__file__", None) != source:
        spec = importlib.util.spec_from_file_location(name, source, submodule_search_locations=[str(package)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    if str(package.parent) not in sys.path:
        sys.path.append(str(package.parent))


def main() -> None:
    """Run the module that the first argument names, with the others."""
    import_package()
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
