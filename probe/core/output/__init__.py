"""The way of a step to the files, on the delivery thread."""
