"""Report of a run: its diagnosis, and the page with its pictures in one file.

:mod:`write` makes the file of what :mod:`probe.core.analysis.pictures` reads; :mod:`findings` holds the cause that is
shown.
"""
