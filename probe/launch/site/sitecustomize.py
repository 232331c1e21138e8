"""First module of each process of a watched program: Python imports it at its start, from a folder in PYTHONPATH."""

import os
import sys


def _prepare() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if each != here]
    try:
        from probe.launch.preparation import prepare
    except ImportError:  # the package is not on the path of this interpreter: it is beside this file
        root = os.path.dirname(os.path.dirname(os.path.dirname(here)))
        sys.path.append(root)
        try:
            from probe.launch.preparation import prepare
        except ImportError:
            return
        finally:
            sys.path.remove(root)
    prepare(os.environ)


_own = sys.modules.pop("sitecustomize", None)
try:
    _prepare()
except Exception as error:  # the program runs all the same
    try:  # to the file itself: what stays in a buffer fails again when the process ends
        os.write(
            2,
            f"probe: warning: nothing is watched ({type(error).__name__}: {error})\n".encode(errors="backslashreplace"),
        )
    except OSError:  # nobody can read it
        pass
try:
    import sitecustomize  # type: ignore[import-not-found] # noqa: F401 - the one that this file hides
except ImportError as missing:
    if missing.name != "sitecustomize":
        raise
finally:
    if _own is not None:
        sys.modules.setdefault("sitecustomize", _own)
