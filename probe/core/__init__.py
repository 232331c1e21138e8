"""Core of the monitor, which needs no framework."""

from probe.core import messages, older_paths

messages.install()
older_paths.install()
