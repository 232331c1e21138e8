"""State of the run: its numbers, phases and progress, at every step, on a path of their own."""
