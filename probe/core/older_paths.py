"""Documented import paths of modules that lie elsewhere, most of them from earlier tools: a table, and its finder.

Each path imports, unpickles and runs with ``python -m`` as a file would that imports the names. Python asks the finder
last: only for modules that nothing else has.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any, NamedTuple


class OlderPath(NamedTuple):
    """Contents of a documented path."""

    target: str
    """Module that defines the names."""
    names: tuple[str, ...]
    """Names that the path offers."""


ANOMALIES = OlderPath("probe.core.analysis.anomaly_processor", ("main",))
CURVES = OlderPath("probe.core.analysis.convert.csv2tb", ("csv2tensorboard_by_step",))
DATABASE = OlderPath("probe.core.analysis.convert.csv2db", ("CSV2DBConfig", "csv2db"))

OLDER_PATHS = {
    "probe.core.anomaly_processor": ANOMALIES,
    "probe.core.monitor.anomaly_processor": ANOMALIES,
    "probe.pytorch.monitor.anomaly_analyse": ANOMALIES,
    "probe.core.csv2db": DATABASE,
    "probe.core.monitor.csv2db": DATABASE,
    "probe.mindspore.csv2tb": CURVES,
    "probe.mindspore.monitor.csv2tb": CURVES,
    "probe.pytorch.csv2tb": CURVES,
    "probe.pytorch.monitor.csv2tb": CURVES,
    # Paths until version 0.2; they go with the next one.
    "probe.core.report.diagnosis": OlderPath("probe.core.analysis.report.findings", ("Diagnosis", "Mark")),
    "probe.core.report.writing": OlderPath("probe.core.analysis.report.write", ("write_report",)),
    "probe.services.performance_monitor": OlderPath("probe.services.performance.monitor", ("PerformanceMonitor",)),
}
"""Contents of each path."""
OLDER_PACKAGES = frozenset({"probe.core.report", "probe.mindspore.monitor", "probe.pytorch.monitor"})
"""Packages in the paths that have no folder."""


def has(path: str) -> bool:
    """Return whether a path is in the table, or a package of one that is."""
    return path in OLDER_PATHS or path in OLDER_PACKAGES


class OlderPathFinder:
    """Finder and loader of the modules in the table. Base classes of ``importlib.abc`` would cost each process 8 ms."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the specification of a module in the table; None for any other."""
        if not has(fullname):
            return None
        # ``python -m`` writes the origin into ``sys.argv[0]``, which must be a text.
        loader: Any = self  # typeshed asks for a child of importlib.abc.Loader
        return ModuleSpec(fullname, loader, origin=__file__, is_package=fullname in OLDER_PACKAGES)

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None: the module is an ordinary one."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the module that lies elsewhere, and take the names from it."""
        if module.__name__ in OLDER_PACKAGES:
            return
        target, names = OLDER_PATHS[module.__name__]
        defined = import_module(target)
        module.__doc__ = f"Older import path of :mod:`{target}`."
        module.__dict__.update({name: getattr(defined, name) for name in names}, __all__=[*names])

    def get_code(self, fullname: str) -> CodeType:
        """Return the code that ``python -m`` runs: that of the module that lies elsewhere."""
        target = OLDER_PATHS[fullname].target
        loader: Any = getattr(find_spec(target), "loader", None)
        code: CodeType = loader.get_code(target)
        return code


_finder = OlderPathFinder()


def install() -> None:
    """Make the paths importable in this process."""
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)
