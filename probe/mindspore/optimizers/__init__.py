"""MindSpore's optimizers."""
