"""Output of steps to files, on the delivery thread."""
