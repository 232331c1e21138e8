"""Core of the monitor, which needs no framework."""

from probe.core import messages

messages.install()
