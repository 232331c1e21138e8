"""Two runs side by side: which row is the first in which they differ.

:mod:`mapping` says which names of one run are which of the other, :mod:`tolerance` by how much equal runs may differ,
:mod:`sides` reads both and pairs their rows, :mod:`tables` measures every pair by steps and by names, :mod:`first`
gets the rows that differ first, in causal order, and :mod:`comparing` is all of it in one call.
"""
