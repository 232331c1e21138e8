"""First module of each process of a watched program: Python imports it at its start, from a folder in PYTHONPATH."""

import os
import sys
from contextlib import suppress


def _prepare() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != folder]
    try:
        from probe.launch.preparation import prepare
    except ImportError:  # the package is not on the path of this interpreter: it is beside this file
        sys.modules.pop("probe", None)  # a folder of this name, such as a clone, that is no package
        root = os.path.dirname(os.path.dirname(os.path.dirname(folder)))
        sys.path.append(root)
        try:
            from probe.launch.preparation import prepare
        finally:
            sys.path.remove(root)
    prepare(os.environ)


_own = sys.modules.pop("sitecustomize", None)
try:
    _prepare()
except Exception as error:  # the program runs all the same
    line = f"probe: warning: nothing is watched ({type(error).__name__}: {error})\n"
    with suppress(OSError):  # to the file itself: what stays in a buffer fails again when the process ends
        os.write(2, line.encode(errors="backslashreplace"))
try:
    import sitecustomize  # type: ignore[import-not-found] # noqa: F401 - the one that this file hides
except ImportError as missing:
    if missing.name != "sitecustomize":
        raise
finally:
    if _own is not None:
        sys.modules.setdefault("sitecustomize", _own)
