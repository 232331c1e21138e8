"""Reading back what monitored runs have written, of any number of ranks, within bounded memory.

:mod:`directories` finds the ranks' directories and which of them are one run, :mod:`files` looks at each file once,
:mod:`rows` gives them to DuckDB as one table a signal, :mod:`batches` gives them step by step as rules take them.
What is wrong with a file is told to :class:`probe.core.storage.problems.Problems`, and the rest is read.
"""
