"""Conversion of a run's files: SQLite for queries, TensorBoard for curves."""
