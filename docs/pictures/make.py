"""Makes the pictures of the documentation: ``make pictures``.

Those of the tutorials come out of their scripts. Pages of ``probe view`` and ``probe serve``, in both languages and
sizes, go to ``build/pictures``, to be looked at; a test holds their layout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tests.view.page_pictures import LANGUAGES, READY, SIZES, shown  # noqa: E402 - the repository is no package

WANDB = sorted(map(str, Path(sys.prefix, "versions").glob("wandb-*")))
"""Folder of W&B in the environment that ``make venv`` makes."""
PAGES = ROOT / "build" / "pictures"


def main() -> None:
    """Writes a picture for each that a tutorial makes, and the pages."""
    own = {"PYTHONPATH": os.pathsep.join((str(ROOT), *WANDB)), "MONITOR_OUTPUT_DIR": "monitor_output"}
    with TemporaryDirectory() as temporary:
        root = Path(temporary)
        for page in sorted((ROOT / "docs" / "tutorial").glob("*.md")):
            script, folder = ROOT / "examples" / "tutorial" / f"{page.stem}.py", root / page.stem
            folder.mkdir()
            subprocess.run([sys.executable, str(script)], check=True, cwd=folder, env=os.environ | own)
        for picture in root.glob("*/*.svg"):
            shutil.copy(picture, HERE)
        pages(root)


def pages(root: Path) -> None:
    """Writes the pages of a server into ``build/pictures``; ``root`` is a folder for the runs that they show."""
    PAGES.mkdir(parents=True, exist_ok=True)
    with shown(root / "runs") as opened:
        for name, language, size in product(READY, LANGUAGES, SIZES):
            opened.open(name, SIZES[size], language)
            opened.driver.save_screenshot(str(PAGES / f"{name}_{language}_{size}.png"))


if __name__ == "__main__":
    main()
