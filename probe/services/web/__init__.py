"""Web servers beside training: one gate, one reader of bodies, one reader of secrets, one process for all of them.

``probe serve``, ``probe exporter``, ``probe remediate`` and ``probe view`` are applications of this room: routes, the
checks of their gate, and limits.
"""
