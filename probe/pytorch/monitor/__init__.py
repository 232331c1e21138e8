"""Module paths as scripts of earlier tools have them."""
