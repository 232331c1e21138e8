"""Monitor of the inside of a training run, which names the first bad layer.

The entry point is the framework's own: ``from probe.pytorch import TrainerMon``. Importing this package loads nothing.
"""

__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> object:
    """Raise an error that names the module of an entry point."""
    if name in ("TrainerMon", "ProbeCallback", "from_yaml", "MFLossMonitor", "TrainingStateMonitor"):
        raise ImportError(f"{name} is made for a framework: import it from probe.pytorch or probe.mindspore")
    raise AttributeError(f"module 'probe' has no attribute {name!r}")
