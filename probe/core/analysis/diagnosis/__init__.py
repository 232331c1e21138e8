"""From the files of all ranks to the first cause.

:mod:`evaluate` runs the rules over the files again, :mod:`replicas` compares tensors that ranks should hold alike,
:mod:`judge` makes judging the work of pieces, and :mod:`passes` puts an engine on it. :mod:`topology` knows the groups
of ranks, :mod:`nodes` the paths of data, of ranks that stand alike together, :mod:`causality` separates causes from
consequences, :mod:`evidence` collects the rows behind a finding, :mod:`explain` writes the paragraph,
:mod:`analyse` runs all of these and adds the findings that the run itself dumped, and :mod:`export` makes JSON of the
result. A :mod:`located_finding` is a finding with its position in training.
"""
