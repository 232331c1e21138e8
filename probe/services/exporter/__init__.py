"""Exporter of a node: the numbers of its ranks, its devices and the machine itself, for Prometheus."""
