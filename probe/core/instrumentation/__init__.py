"""Observation of a training run: hooks, steps, recording."""
