"""Look at every step, sampled or not, and its way to the parent process of the node."""
