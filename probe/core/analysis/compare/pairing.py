"""Pairs of ranks, signals, names and steps of two runs, by which their rows are paired."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from probe.core.analysis.compare.census import Census, Wanted
from probe.core.analysis.compare.compared_piece import Side
from probe.core.analysis.compare.name_map import NameMap, Pairs, nearest, pair
from probe.core.language import invalid
from probe.core.messages import spans
from probe.core.naming import RUN, signal_of
from probe.core.storage.layout import CALL, MICRO_STEP, NAME, STEP

KEY = ("rank", "stage", NAME, STEP, MICRO_STEP, CALL)
"""Columns that pair rows of the two runs."""


class Options(NamedTuple):
    """Options of a comparison."""

    first_step: int | None = None
    last_step: int | None = None
    """Last step of A; ``first_step`` is the first. Both are included."""
    step_offset: int = 0
    """Number that is added to a step of A to get that of B."""
    ranks: tuple[int, int] | None = None
    """Rank of A and rank of B; else all ranks that both have."""
    signals: tuple[str, ...] = ()
    """Signals by their names in A; else all."""
    ops: tuple[str, ...] = ()
    """Ops to compare; else all that both have."""
    relative: float | None = None
    """Relative tolerance; else by dtype."""
    common: bool = False
    """True if data of one run alone are no difference."""
    mapping: NameMap = NameMap()


class OnlyIn(NamedTuple):
    """Data of one run alone."""

    a: list[str]
    b: list[str]


class RowPairing(NamedTuple):
    """Pairing of the rows of two runs, apart from their ranks: a worker needs no more."""

    signals: dict[str, str]
    """Signals of A that B has too, with B's names; in causal order."""
    ops: dict[str, tuple[str, ...]]
    """Ops of each signal that both runs have."""
    chosen: dict[str, tuple[str, ...]]
    """Ops of each signal that are to be compared."""
    names: dict[str, str]
    """Names of A that are different in B, with those."""
    steps: tuple[int, ...]
    """Steps of A that both have, in order."""
    step_offset: int
    decimals: float
    """Unit of the last decimal place, if values were rounded to a fixed number of places; else 0."""
    relative: float
    """Relative tolerance."""
    dtypes: frozenset[str] = frozenset()
    """Signals of A whose dtypes are compared row by row."""
    noise: frozenset[str] = frozenset()
    """Names of A of parameters whose gradients are nothing but rounding in both runs."""
    begins: bool = False
    """True if the first step that is compared is the first of both runs."""
    jump: float = math.inf
    """Relative difference of what comes out of a module from which on it is more than rounding."""
    left_out: tuple[tuple[str, int], ...] = ()
    """Signals of A with steps of one run alone that are no difference: a run that is paced chose its own."""


NOISE: dict[str, float] = {"float64": 1e-12, "float32": 1e-6, "float16": 3e-4, "bfloat16": 1e-3, "float8": 1e-2}
"""Part of the largest gradient up to which another one is nothing but rounding, by the coarsest dtype: that of a key's
bias, which the softmax cancels, was 6e-9 in float32 and 1e-4 in bfloat16, and the next one 1e-2."""
UNLIKE = 0.25
"""Part of the names up to which other dtypes are a difference of these; more are another precision."""
LEAST, MOST = -(1 << 62), 1 << 62
"""Bounds of steps where there is no other."""


def wanted(options: Options) -> Wanted:
    """Return the rows that have to be counted."""
    names = options.mapping.signals
    of_b = [names.get(signal, signal) for signal in options.signals]
    first = LEAST if options.first_step is None else options.first_step
    last = MOST if options.last_step is None else options.last_step
    return Wanted(options.signals or None, of_b or None, first, last)


def pair_ranks(a: Side, b: Side, options: Options) -> list[tuple[int, int]]:
    """Return the ranks of A that are compared, each with that of B.

    Raises:
        ValueError: if there are none.
    """
    of_a, of_b = a.run.ranks, b.run.ranks
    if options.ranks:
        for rank, side in zip(options.ranks, (a, b), strict=True):
            if rank not in side.run.ranks:
                listing = ", ".join(map(str, side.run.ranks))
                raise ValueError(f"--rank: expected one of the ranks of {side.root}: {listing}; got {rank}")
        return [options.ranks]
    common = frozenset(of_b)
    ranks = [(rank, rank) for rank in of_a if rank in common]
    if not ranks:
        raise invalid(
            "the runs have no rank in common: A has {of_a}, B {of_b}; choose with --rank A:B",
            of_a=list(of_a),
            of_b=list(of_b),
        )
    return ranks


def only_ranks(a: Side, b: Side, options: Options) -> OnlyIn:
    """Return the ranks that only one run has, if all are compared."""
    of_a, of_b = frozenset(a.run.ranks), frozenset(b.run.ranks)
    if options.ranks:
        return OnlyIn([], [])
    return OnlyIn(
        [str(rank) for rank in a.run.ranks if rank not in of_b], [str(rank) for rank in b.run.ranks if rank not in of_a]
    )


class Sides:
    """Signals, names and steps that both runs have.

    Raises:
        ValueError: if they have nothing in common, or if the mapping or the options name data that they lack.
    """

    def __init__(self, a: Side, b: Side, options: Options, census: Census) -> None:
        self.a, self.b, self.options, self.census = a, b, options, census
        self.signals = self._pair_signals()
        """Signals of A that B has too, with B's names; in causal order."""
        self.only_signals = self._only_signals()
        self.names = self._pair_names()
        self.steps, self.only_steps = self._pair_steps()
        """Steps of A that both have, in order; and as texts those of one run alone."""

    def dtypes(self) -> list[str]:
        """Dtypes that are compared."""
        return [*self.census.dtypes("a", self.signals), *self.census.dtypes("b", self.signals.values())]

    def pairing(self, relative: float, dtype: str, jump: float) -> RowPairing:
        """Return the pairing of rows, for workers.

        Args:
            dtype: the coarsest dtype that either run computes in.
            jump: relative difference of what comes out of a module from which on it is more than rounding.
        """
        ops, requested = {}, self.options.ops
        for of_a, of_b in self.signals.items():
            shared = frozenset(self.census.numbers("b", of_b))
            ops[of_a] = tuple(op for op in self.census.numbers("a", of_a) if op in shared)
        compared = {
            signal: tuple(op for op in numbers if not requested or op in requested) for signal, numbers in ops.items()
        }
        decimals = max(self.a.decimals, self.b.decimals)
        offset = self.options.step_offset
        return RowPairing(
            self.signals,
            ops,
            compared,
            self.names.renamed,
            self.steps,
            offset,
            decimals,
            relative,
            frozenset(signal for signal in self.signals if self._precision_is_that_of_b(signal)),
            frozenset(self._noise(NOISE[dtype]) if relative else ()),
            self._begins(),
            jump,
            tuple((s, step) for s in self._paced() for step in self._steps_of("a", s) ^ self._steps_of("b", s)),
        )

    def other_precision(self) -> list[str]:
        """Signals of which most names have other dtypes in B, so that these are not compared."""
        return [signal for signal in self.signals if not self._precision_is_that_of_b(signal)]

    def _precision_is_that_of_b(self, signal: str) -> bool:
        """Return whether a name with another dtype is a difference: both runs have the same dtypes, or most names."""
        a, b = self.census.rows["a", signal].dtypes, self.census.rows["b", self.signals[signal]].dtypes
        pairs = [(_floats(dtypes), _floats(b[other])) for name, dtypes in a.items() if (other := self._of_b(name)) in b]
        pairs = [pair for pair in pairs if all(pair)]
        unlike = sum(one != other for one, other in pairs)
        whole = [set[str]().union(*side) for side in zip(*pairs, strict=True)]
        return unlike <= UNLIKE * len(pairs) or whole[0] == whole[1]

    def _of_b(self, name: str) -> str:
        return self.names.renamed.get(name, name)

    def _noise(self, most: float) -> Iterator[str]:
        for signal in self.signals:
            for name in self.census.rows["a", signal].sizes:
                shares = (
                    self.census.share("a", signal, name),
                    self.census.share("b", self.signals[signal], self._of_b(name)),
                )
                if all(0 < share <= most for share in shares):
                    yield name

    def _begins(self) -> bool:
        first = self.steps[0]
        firsts = (min(directory.first_step for directory in side.run.directories) for side in (self.a, self.b))
        return all(begin >= step for begin, step in zip(firsts, (first, first + self.options.step_offset), strict=True))

    def _named_in_b(self) -> dict[str, str]:
        """Signals of A, with B's name of each."""
        return {signal: self.options.mapping.signals.get(signal, signal) for signal in self.census.signals("a")}

    def _wanted(self) -> set[str]:
        return set(self.options.signals or self.census.signals("a"))

    def _pair_signals(self) -> dict[str, str]:
        mapping, a, b = self.options.mapping, self.census.signals("a"), self.census.signals("b")
        are = f"; there are {', '.join(sorted(a))}"
        problems = [
            f"--signals: {s!r} is no signal of A{nearest(s, a)}{are}" for s in self.options.signals if s not in a
        ]
        for of_a, of_b in mapping.signals.items():
            problems += [f"{mapping.source}: signals: {of_a!r} is no signal of A{nearest(of_a, a)}"] * (of_a not in a)
            problems += [f"{mapping.source}: signals: {of_b!r} is no signal of B{nearest(of_b, b)}"] * (of_b not in b)
        if problems:
            raise ValueError("\n".join(problems))
        shared = {s: name for s, name in self._named_in_b().items() if s in self._wanted() and name in b}
        micro_stepped = self.census.micro_stepped
        common = {s: n for s, n in shared.items() if _alike(micro_stepped("a", s), micro_stepped("b", n))}
        if not common:
            unlike = f"; {', '.join(shared)} of one has micro steps, or no row that can be read" if shared else ""
            raise ValueError(
                f"the runs have no signal in common: A has {', '.join(a) or 'none'}; B {', '.join(b) or 'none'}{unlike}"
            )
        ops = {op for signal in common for op in self.census.numbers("a", signal)}
        are = f"; there are {', '.join(sorted(ops))}: name some of these"
        unknown = [
            f"--ops: {op!r} is no number of A{nearest(op, ops) or are}" for op in self.options.ops if op not in ops
        ]
        if unknown:
            raise ValueError("\n".join(unknown))
        return dict(sorted(common.items(), key=lambda pair: (signal_of(pair[0]).phase, pair[0])))

    def _only_signals(self) -> OnlyIn:
        """Signals of one run alone. A signal with rows for each micro step in one run and for each step in the other is
        one of them."""
        a, b, named = self.census.signals("a"), self.census.signals("b"), self._named_in_b()
        of_a = [s for s in a if s in self._wanted() and s not in self.signals]
        paired = set(self.signals.values())
        of_b = [s for s in b if s not in paired and not self.options.signals]
        return OnlyIn(
            [self._described("a", s) if named[s] in b else s for s in sorted(of_a)],
            [self._described("b", s) if s in named.values() else s for s in sorted(of_b)],
        )

    def _described(self, letter: str, signal: str) -> str:
        return f"{signal} ({'each micro step' if self.census.micro_stepped(letter, signal) else 'once a step'})"

    def _pair_names(self) -> Pairs:
        of = {"a": tuple(self.signals), "b": tuple(self.signals.values())}
        named = ((s.framework or _by_dtypes(self.census.dtypes(s.letter, of[s.letter]))) for s in (self.a, self.b))
        frameworks = {*named} - {""}
        a, b = (self.census.names(letter, of[letter]) for letter in "ab")
        return pair(self.options.mapping, a, b, len(frameworks) > 1)

    def _paced(self) -> set[str]:
        """Signals of which a run may have chosen the steps by their cost."""
        return self.signals.keys() - {RUN} if self.a.paced or self.b.paced else set()

    def _steps_of(self, letter: str, signal: str) -> set[int]:
        return self.census.steps(letter, [signal if letter == "a" else self.signals[signal]])

    def _pair_steps(self) -> tuple[tuple[int, ...], OnlyIn]:
        a, b = self.census.steps("a", self.signals), self.census.steps("b", self.signals.values())
        whole = self.signals.keys() - self._paced()
        of_a, of_b = (set[int]().union(*(self._steps_of(letter, signal) for signal in whole)) for letter in "ab")
        only = OnlyIn(spans(of_a - of_b), spans(step + self.options.step_offset for step in of_b - of_a))
        if not a & b:
            texts = [", ".join(steps_of[:5]) or "none" for steps_of in only]
            raise ValueError(
                f"the runs have no step in common: of those asked for A has {texts[0]}, B {texts[1]}; leave --steps "
                "out, or shift those of B by --step-offset"
            )
        return tuple(sorted(a & b)), only


def plain_dtype(dtype: str) -> str:
    """Return a dtype in the same spelling for all frameworks: ``bfloat16`` of ``torch.bfloat16`` and ``BFloat16``."""
    return dtype.rpartition(".")[2].lower()


def _floats(dtypes: Iterable[str]) -> frozenset[str]:
    """Return the dtypes of floating point."""
    return frozenset(plain for dtype in dtypes if (plain := plain_dtype(dtype)).startswith(("float", "bfloat")))


def _by_dtypes(dtypes: Sequence[str]) -> str:
    """Framework by its spelling of dtypes, for a run whose manifest names none; empty if it is unknown."""
    if any(dtype.startswith("torch.") for dtype in dtypes):
        return "pytorch"
    return "mindspore" if any(dtype[:1].isupper() for dtype in dtypes) else ""


def _alike(one: bool | None, other: bool | None) -> bool:
    return one is None or other is None or one == other
