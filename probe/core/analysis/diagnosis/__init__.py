"""From the files of all ranks to the first cause: judged, put in order, and told what follows from what.

:mod:`entries` reads what runs have dumped in ``anomaly.json``, :mod:`judging` has the rules judge the files again,
:mod:`replicas` compares what ranks should hold alike, :mod:`topology` says who can infect whom, :mod:`classes` tells
causes from what follows, :mod:`words` says it in a paragraph, :mod:`analysis` does all of it, and :mod:`objects`
and :mod:`card` give it to machines and to reports.
"""
