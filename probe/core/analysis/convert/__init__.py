"""The files of a run in other forms: SQLite for questions, TensorBoard for curves."""
