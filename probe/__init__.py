"""Monitor of the inside of a training run, which names the first bad layer.

The entry point is the framework's own: ``from probe.pytorch import TrainerMon``. Importing this package loads nothing.
"""

import sys

__version__ = "0.1.0.dev0"

_HOMES = {
    **dict.fromkeys(
        ("TrainerMon", "from_yaml", "MFLossMonitor", "TrainingStateMonitor"), "probe.pytorch or probe.mindspore"
    ),
    **dict.fromkeys(
        ("HuggingFaceCallback", "LightningCallback", "ComposerCallback", "ProbeTracker", "WatchedMetrics", "watch"),
        "probe.pytorch.callbacks",
    ),
    "TrainerMonitorV2": "probe.core.monitor_v2.trainer",
    "RunCallback": "probe.mindspore.callbacks",
    "ProbeCallback": "probe.mindspore, or that of a trainer from probe.pytorch.callbacks.huggingface, .lightning "
    "or .composer",
}
"""Modules from which a name is imported that is made for a framework or a trainer."""


class _LastFinder:
    """Finder that is asked for what no module here has, and whose error says where it is."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        """Return None for a module of another package, of the table of older paths, or that is not to be imported:
        ``importlib.util.find_spec`` asks, too, and so does ``python -m``.

        Raises:
            ModuleNotFoundError: without a name: ``from probe.pytorch import Trainer`` then ends with it.
        """
        if not fullname.startswith("probe.") or sys._getframe(2).f_code.co_name != "_find_and_load_unlocked":
            return
        older = sys.modules.get("probe.core.older_paths")
        if not (older is not None and older.has(fullname)):
            raise ModuleNotFoundError(_lacking(*fullname.rpartition(".")[::2], path))


def _lacking(module: str, name: str, path: object = None) -> str:
    from difflib import get_close_matches
    from pkgutil import iter_modules

    advice = "TrainerMon is in probe.pytorch and probe.mindspore, and docs/reference/python.md lists all names"
    known = [*dir(sys.modules.get(module)), *(found.name for found in iter_modules(path))]  # type: ignore[arg-type]
    if name in _HOMES:
        advice = f"import it from {_HOMES[name]}"
    elif close := get_close_matches(name, known, 1):
        advice = f"did you mean {close[0]}?"
    return f"{module} has no {name}; {advice}"


def __getattr__(name: str) -> object:
    """Raise an error that names the module of an entry point."""
    if name in _HOMES:
        raise ImportError(_lacking("probe", name, []))
    raise AttributeError(f"module 'probe' has no attribute {name!r}")


sys.meta_path.append(_LastFinder)
