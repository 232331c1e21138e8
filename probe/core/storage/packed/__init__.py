"""Packed runs: few large files with an index.

``run`` reads the index, ``listing`` gives DuckDB the files; ``pack`` writes them by ``plan``, ``blocks``, ``tables``
and ``draft``.
"""
