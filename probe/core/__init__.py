"""Everything that needs no framework."""

from probe.core import messages

messages.install()
