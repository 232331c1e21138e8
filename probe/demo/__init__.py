"""Demonstration behind ``probe demo``: a small GPT trains, one layer is broken, and the monitor names it."""
