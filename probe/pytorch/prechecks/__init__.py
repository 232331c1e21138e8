"""Trial of a program of torch: what prechecks judge is recorded here, in a process that ends after a few updates."""
