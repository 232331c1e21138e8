"""Comparison of two runs: the first row in which they differ.

:mod:`runs` opens both in one database, :mod:`name_map` maps the names of one run to those of the other, :mod:`pairing`
pairs their rows, :mod:`tolerance` knows by how much equal runs may differ, :mod:`differences` measures every pair by
steps and by names, :mod:`first_difference` finds the rows that differ first, in causal order, :mod:`compare` does all
of it in one call, and :mod:`explain` and :mod:`page` write the result.
"""
