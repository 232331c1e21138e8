"""Import paths of earlier tools."""
