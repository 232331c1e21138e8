"""Module paths that scripts of earlier tools import."""
