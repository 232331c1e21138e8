"""Comparison of two runs: the first row in which they differ.

Both runs are read in pieces, by rank and range of steps, by the workers of an engine. :mod:`compared_piece` cuts the
runs and opens a piece of both in one database, :mod:`census` counts the names, steps and dtypes in it, :mod:`name_map`
maps the names of one run to those of the other, :mod:`pairing` pairs signals, names and steps, :mod:`piece_rows`
selects the rows of a piece, :mod:`differences` measures every pair, with the tolerances of equal runs, by steps and by
names, :mod:`first_difference` finds the rows that differ first, in causal order, :mod:`compare` does each of these over
all pieces, in one call, and :mod:`explain` writes the result.
"""
