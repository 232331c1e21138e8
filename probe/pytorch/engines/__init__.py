"""Engines, with their ways of wrapping models, distributing tensors and taking steps."""
