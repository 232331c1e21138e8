"""A fixed set of runs, and a hash of every file that they write: the proof that a change of the code changed no output.

    python -m tests.fixed_runs --tree OTHER/CLONE

runs all of them once with the package of this tree and once with that of the other, and prints the files that differ.
"""
