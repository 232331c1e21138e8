"""Local page over runs: read only, by number, as they are and while they grow."""
