"""First code of ours in a process that is attached to. Python's standard library alone is certain to be there: the text
of this module, with a call at its end, is the script that the process runs."""

import importlib
import json
import sys
from pathlib import Path


def inject(place: str) -> None:
    """Attach as the request beside ``place`` asks for; whatever fails becomes the answer.

    Args:
        place: folder of this process in the exchange.
    """
    if Path(place, "decided").exists():  # the command has given up
        return
    try:
        request = json.loads(Path(place).with_name("request.json").read_text(encoding="utf-8"))
        _write(place, "started", {})
        problem = _problem(request["version"], request["root"])
        if problem:
            _write(place, "answer", {"state": "refused", "reason": problem})
        else:
            importlib.import_module("probe.launch.attach.joining").join(place)
    except Exception as error:  # noqa: BLE001 - the program goes on
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        if Path(place).exists():  # else nobody waits any more
            _write(place, "answer", {"state": "refused", "reason": reason})


def _problem(version: str, root: str) -> str:
    """Return why the monitor cannot be used in this process; an empty text if it can."""
    importlib.invalidate_caches()  # it may have been installed since this process began
    try:
        try:
            probe = importlib.import_module("probe")
        except ImportError:
            sys.path.append(root)
            try:
                probe = importlib.import_module("probe")
            finally:
                sys.path.remove(root)
        if probe.__version__ == version:
            importlib.import_module("probe.launch.attach.joining")
    except ImportError as error:
        return (
            f"probe cannot be imported in this process ({error}): install probe-monitor {version} in its environment, "
            f"{sys.prefix}, and attach again; the training goes on meanwhile"
        )
    if probe.__version__ != version:
        return (
            f"this process has probe {probe.__version__}, the command is probe {version}: attach by the command of its "
            f"own environment, `{sys.executable} -m probe attach`"
        )
    return ""


def _write(place: str, name: str, content: object) -> None:
    """Write a file of JSON as a whole."""
    path = Path(place, f"{name}.json")
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)
