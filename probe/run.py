"""``torchrun ... -m probe.run train.py``: a script as it is, watched, in the process that the launcher has started."""

from probe.cli import app

if __name__ == "__main__":
    import sys

    app(["run", *sys.argv[1:]], prog_name="python -m probe.run")
