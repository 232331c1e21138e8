"""Communication between the ranks of a run, in parallel with training."""
