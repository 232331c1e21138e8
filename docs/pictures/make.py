"""Makes the pictures of the documentation: ``make pictures``.

A demonstration whose fault is known, its report, and what a browser shows of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.core.analysis.browsing import browser, open_page  # noqa: E402 - the repository is no package

SIZE = 1360, 1500
"""Pixels: the first cause and the heatmap below it."""


def main() -> None:
    """Writes ``report.png``."""
    with TemporaryDirectory() as temporary:
        root = Path(temporary)
        probe = [sys.executable, "-m", "probe"]
        demo = [*probe, "demo", "--fault", "nan", "--seed", "3", "--output", "run"]
        subprocess.run(demo, check=True, cwd=root)
        subprocess.run([*probe, "report", "run", "-o", "report.html"], check=True, cwd=root)
        with browser(root / "profile") as driver:
            driver.set_window_size(*SIZE)
            open_page(driver, root / "report.html")
            driver.save_screenshot(str(HERE / "report.png"))


if __name__ == "__main__":
    main()
