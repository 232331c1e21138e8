"""Precheck for activations that grow or vanish from block to block."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from probe.core.checks.check import CheckFinding, Grade, NotApplicable
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import OutputFacts, Trial

BLOCK = 10.0
"""Factor between the outputs of neighbouring blocks from which on they grow or vanish."""
EXTREME = 1e6
FEWEST = 3
"""Blocks of a list at least."""
NUMBERED = re.compile(r"^(.*?)(\d+)$")


class ActivationGrowth(Precheck):
    """Note numbered blocks of one class whose outputs grow or shrink by more than ten times from each to the next, and
    report them where that comes to a factor of a million."""

    name = "activation-growth"
    title = "Activations grow or vanish"
    why = "A deeper model, or half precision, overflows."
    source = "https://arxiv.org/abs/1502.01852"
    sees = "root mean square of the outputs of each module in the first forward"
    remedy = "Scale the initial weights to the width of their inputs, and normalise between blocks."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        for blocks in _lists(trial.outputs):
            sizes = [row.rms for row in blocks]
            factors = [after / before for before, after in pairwise(sizes) if before and after]
            total = sizes[-1] / sizes[0] if sizes[0] else 0.0
            steady = len(factors) == len(sizes) - 1 and (min(factors) > BLOCK or max(factors) < 1 / BLOCK)
            if steady:
                grade: Grade = "warning" if total > EXTREME or total < 1 / EXTREME else "note"
                verb = "grow" if total > 1 else "shrink"
                span = f"between {blocks[0].name} and {blocks[-1].name}"
                text = f"outputs {verb} from {sizes[0]:.3g} to {sizes[-1]:.3g} {span}"
                evidence = {"first": sizes[0], "last": sizes[-1], "blocks": len(sizes)}
                yield self.finding(text, evidence, [row.name for row in blocks], grade)

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        return None if any(_lists(trial.outputs)) else NotApplicable("no list of blocks")


def _lists(rows: Sequence[OutputFacts]) -> list[list[OutputFacts]]:
    """Return the blocks of one class that a list numbers, list by list, in the order of the calls."""
    lists: defaultdict[tuple[str, str], list[OutputFacts]] = defaultdict(list)
    for row in rows:
        if (numbered := NUMBERED.match(row.name)) is not None:
            lists[numbered[1], row.kind].append(row)
    return [blocks for blocks in lists.values() if len(blocks) >= FEWEST]
