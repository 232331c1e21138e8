"""One source a signal: where it attaches and what it records."""
