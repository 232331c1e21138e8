"""Search of an incident's cause backwards in what was recorded before it.

:mod:`excursions` finds the rows that left their level, :mod:`look_back` compares what stands out before an incident
with what stands out before other steps, :mod:`shipped_chances` has the same of healthy recordings, and :mod:`onset` is
the answer.
"""
