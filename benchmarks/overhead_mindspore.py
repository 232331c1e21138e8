"""Cost of watching a training step on MindSpore: ``overhead.py --framework mindspore``."""

from __future__ import annotations

import sys

import overhead

if __name__ == "__main__":
    if "--framework" not in sys.argv:
        sys.argv[1:1] = ["--framework", "mindspore"]
    overhead.main()
