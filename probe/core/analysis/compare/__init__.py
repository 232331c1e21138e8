"""Comparison of two runs: the first row in which they differ.

:mod:`name_map` maps the names of one run to those of the other, :mod:`pairing` opens both in one database and pairs
their rows, :mod:`differences` measures every pair, with the tolerances of equal runs, by
steps and by names, :mod:`first_difference` finds the rows that differ first, in causal order, :mod:`compare` does all
of it in one call, and :mod:`explain` and :mod:`page` write the result.
"""
