"""Commands of `probe`, run as a shell would run them."""

import os
import subprocess
import sys


def run(*words: str) -> str:
    """Prints a command and its output, and returns the output. If a package is missing, the output names it."""
    print("$ probe", *words)
    command, wide = [sys.executable, "-m", "probe", *words], os.environ | {"COLUMNS": "110"}
    done = subprocess.run(command, env=wide, capture_output=True, text=True, check=False)
    print(done.stdout + done.stderr)
    return done.stdout
