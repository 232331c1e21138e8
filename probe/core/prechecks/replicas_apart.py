"""Precheck for replicas that begin with different parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.checks.places import ancestors, listing
from probe.core.prechecks.precheck import RankPrecheck
from probe.core.prechecks.trial import ParameterFacts, Trial


class ReplicasApart(RankPrecheck):
    """Report parameters that differ between ranks before the first update, though all ranks apply the same gradient to
    them: they are replicas, and stay apart.

    Gradients are the same if their norms are equal to the last digit. Parts of divided parameters have gradients of
    their own.
    """

    name = "replicas-differ"
    title = "Replicas begin apart"
    why = "Ranks average gradients of different models, and none of these is trained."
    source = "https://horovod.readthedocs.io/en/stable/pytorch.html"
    sees = "digest of each parameter before the first update and norm of its gradient, on each rank"
    remedy = "Broadcast the parameters from one rank, or seed all ranks alike before the model is made."

    def compare(self, trials: Sequence[Trial]) -> Iterator[CheckFinding]:
        """Yield the findings between the trials of several ranks."""
        ranks = [{row.name: row for row in trial.parameters} for trial in trials]
        names = [name for name in (ranks[0] if ranks else ()) if all(name in rows for rows in ranks)]
        replicas = [name for name in names if len(ranks) > 1 and _is_replica([rows[name] for rows in ranks])]
        apart = [name for name in replicas if len({rows[name].digest for rows in ranks}) > 1]
        if apart and 2 * len(replicas) > len(names):
            where = ancestors(apart, names)
            text = f"{listing(where)}: ranks begin with different numbers, and apply the same gradient to them"
            finding = self.finding(text, {"parameters": len(apart), "of": len(names)}, where)
            yield finding._replace(ranks=tuple(trial.rank for trial in trials))

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        if trial.world < 2:
            return NotApplicable("there is one rank")
        return None if trial.parameters else "no update was seen"


def _is_replica(rows: Sequence[ParameterFacts]) -> bool:
    """Return whether all ranks have the numbers of a parameter, and the same gradient at the first update."""
    norms = {row.gradients[:1] for row in rows}
    return all(row.digest for row in rows) and len(norms) == 1 and all(norm > 0 for norm in next(iter(norms)))
