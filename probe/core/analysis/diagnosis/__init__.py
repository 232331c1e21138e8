"""From the files of all ranks to the first cause.

:mod:`evaluate` runs the rules over the files again, :mod:`live_findings` adds the findings that the run itself dumped,
:mod:`replicas` compares tensors that ranks should hold alike, :mod:`collectives` finds exchanges that carried NaN or
Inf, :mod:`topology` knows the groups of ranks, :mod:`causality` separates causes from consequences, :mod:`evidence` and
:mod:`extent` collect the rows behind a finding and count those judged, :mod:`explain` writes the paragraph,
:mod:`analyse` runs all of these, and :mod:`export` makes JSON of the result. A :mod:`located_finding` is a finding with
its position in training.
"""
