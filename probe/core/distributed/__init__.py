"""Communication between the ranks of a run, beside training."""
