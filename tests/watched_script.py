"""A script in a process that has been forked, prepared as the processes of ``probe run`` are."""

import os
import runpy
import sys
from pathlib import Path

from probe.launch.preparation import prepare

if __name__ == "__main__":
    prepare(os.environ)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
