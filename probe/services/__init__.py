"""Processes beside training."""
