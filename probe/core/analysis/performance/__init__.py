"""Performance of a run from its files: time, throughput and its drops, communication, slow ranks, devices, a score."""
