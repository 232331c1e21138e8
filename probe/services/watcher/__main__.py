"""Program of the watcher: ``python -m probe.services.watcher FOLDER``, started by the first rank of a node."""

from __future__ import annotations

import sys

from probe.services.watcher.program import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
