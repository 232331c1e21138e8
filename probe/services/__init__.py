"""Processes beside training."""

from probe.core import older_paths

older_paths.install()
