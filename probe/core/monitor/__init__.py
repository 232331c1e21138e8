"""The monitor, and module paths that scripts of earlier tools import."""
