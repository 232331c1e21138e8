"""Monitor of the inside of a training run, which names the first bad layer.

The entry point is the framework's own: ``from probe.pytorch import TrainerMon``. Importing this package loads nothing.
"""

__version__ = "0.1.0.dev0"
