"""A folder that installs `probe-monitor` on a machine without a package index: all wheels and a script of one command.

    make bundle EXTRAS=analysis,tensorboard        or: python resources/packages/bundle.py --extras analysis,tensorboard

The wheels are those of this machine and this Python. For other ones name both: `--python 3.12 --platform
manylinux2014_aarch64`; then each package that is needed must offer a wheel. Options after `--` are pip's, such as
`-- --no-index --find-links FOLDER`.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTALL = """#!/bin/sh
# Install {requirement} from this folder alone: sh install.sh, or PYTHON=path/to/python sh install.sh
exec "${{PYTHON:-python3}}" -m pip install --no-index --find-links "$(dirname "$0")/wheels" "$@" "{requirement}"
"""


def main() -> None:
    """Make the folder, and print the command that installs from it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder with the wheels of make dist")
    parser.add_argument("--output", type=Path, help="folder to make; that of the wheels by default")
    parser.add_argument("--extras", default="", help="features, separated by commas, such as analysis,s3")
    parser.add_argument("--python", help="version of the other machine's Python, such as 3.12")
    parser.add_argument("--platform", action="append", default=[], help="its platform; repeatable")
    parser.add_argument("pip", nargs="*", help="options of pip")
    arguments = parser.parse_args()
    folder = bundle(
        arguments.dist, arguments.output or arguments.dist, arguments.extras, arguments.python, arguments.platform,
        arguments.pip,
    )  # fmt: skip
    print(f"{folder}\nOn the other machine: sh {folder.name}/install.sh")


def bundle(
    dist: Path, output: Path, extras: str, python: str | None, platforms: list[str], options: Iterable[str]
) -> Path:
    """Return the folder, newly made."""
    source = only(dist.glob("probe_monitor-*.tar.gz"), f"no source archive in {dist}: run make dist")
    version = source.name.removeprefix("probe_monitor-").removesuffix(".tar.gz")
    requirement = f"probe-monitor[{extras}]=={version}" if extras else f"probe-monitor=={version}"
    folder = output / f"probe-monitor-{version}-bundle"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wheels").mkdir(parents=True)
    subprocess.run(
        [sys.executable, "-m", "pip", *collect(folder / "wheels", python, platforms), "--find-links", str(dist),
         "--only-binary", "probe-monitor", *options, requirement], check=True,
    )  # fmt: skip
    (folder / "install.sh").write_text(INSTALL.format(requirement=requirement), encoding="utf-8")
    (folder / "install.sh").chmod(0o755)
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.relative_to(folder)}\n" for each in made(folder)]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    return folder


def collect(wheels: Path, python: str | None, platforms: list[str]) -> list[str]:
    """Return the command of pip that puts wheels into a folder. For this machine it also builds what has no wheel."""
    if not python and not platforms:
        return ["wheel", "--wheel-dir", str(wheels)]
    choice = [*(["--python-version", python] if python else []), *(f"--platform={each}" for each in platforms)]
    return ["download", "--dest", str(wheels), "--only-binary", ":all:", *choice]


def made(folder: Path) -> list[Path]:
    """Return the files of a bundle in their order."""
    return [*sorted((folder / "wheels").iterdir()), folder / "install.sh"]


def only(paths: Iterable[Path], absent: str) -> Path:
    """Return the one path that there is."""
    found = list(paths)
    if len(found) != 1:
        raise SystemExit(f"{absent} (found: {', '.join(each.name for each in found) or 'none'})")
    return found[0]


if __name__ == "__main__":
    main()
