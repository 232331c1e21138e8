"""Search for the first value of a step that is not finite, from its last one back to what made it.

A value that is not finite is blamed on such values among those from which it was computed, and on these again, until
none is left. Values whose numbers nobody has kept are passed through. So a value is evidence only if nothing but such
values lies between it and the loss: ``-inf`` under a mask, behind which all is finite, is never reached.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from probe.core.checks.beginning import Beginning, Spoilt, common_owner, owner

State = Literal["finite", "nan", "inf", "-inf", "unknown"]
"""Numbers of a value: ``nan`` if there is any, else ``inf`` if that is there, else ``-inf``."""
CERTAIN = 4
"""Doubt of an operation that has made such numbers."""
SUSPECTS = 3
"""Operations that are named side by side, at most."""


class Operation(NamedTuple):
    """Operation of a step."""

    name: str
    order: int
    """Number by which operations were begun; those of the same thread are in order."""
    inputs: tuple[int, ...]
    """Values from which it computes, by their number."""
    parameters: tuple[str, ...]
    """Names of the parameters that it uses."""
    module: str = ""
    """Name of the module in whose forward it ran, if that was seen."""


class StepValue(NamedTuple):
    """Value of a step."""

    maker: int | None
    """Operation that computed it; None for what was there before."""
    name: str
    """Name of the parameter or buffer that it is, or is a view of; empty for others."""


class ValueGraph(Protocol):
    """Operations and values of one step, whose numbers are read when they are asked for."""

    @property
    def operations(self) -> Sequence[Operation]:
        """The operations, by number."""

    @property
    def values(self) -> Sequence[StepValue]:
        """The values, by number."""

    @property
    def cut(self) -> bool:
        """True if operations are missing, or the time was over."""

    def state(self, value: int) -> State:
        """Return the numbers of a value."""

    def doubt(self, operation: int, spoilt: State) -> int:
        """Return the probability, from 0 to :data:`CERTAIN`, that an operation has made numbers of the state ``spoilt``
        out of finite ones."""

    def confines(self, operation: int, spoilt: State) -> bool:
        """Return whether such numbers may be meant where they enter an operation: those that a mask excludes."""

    def expired(self) -> bool:
        """Return whether the time is over."""


class _Cause(NamedTuple):
    """Value that is not finite and enters a region."""

    value: int
    reader: int
    state: State
    confined: bool


class _Region(NamedTuple):
    """Operations that may have made a value, as no number between them is known."""

    operations: dict[int, bool]
    """Each with whether such numbers may be meant where its result is read."""
    causes: list[_Cause]
    """Values that explain it."""


class _End(NamedTuple):
    """Value that is not finite and that no other explains."""

    order: int
    value: int
    reader: int
    """Operation that reads it; -1 if it is the last value of the step."""
    state: State
    region: _Region


def beginning(graph: ValueGraph, root: int) -> Beginning | None:
    """Return the beginning of the numbers that are not finite in ``root``; None if it is finite."""
    spoilt = graph.state(root)
    if spoilt == "finite":
        return None
    pending, seen = [(_order(graph, root, -1), root, -1)], {root}
    ends: list[_End] = []
    while pending and not graph.expired():
        order, value, reader = heapq.heappop(pending)
        state: State = "nan" if graph.state(value) == "unknown" else graph.state(value)
        region = _region(graph, value, state)
        if not region.causes:
            ends.append(_End(order, value, reader, state, region))
        for cause in region.causes:
            if cause.value not in seen:
                seen.add(cause.value)
                heapq.heappush(pending, (_order(graph, cause.value, cause.reader), cause.value, cause.reader))
    if not ends:  # the time was over before one was reached
        order, value, reader = min(pending)
        ends.append(_End(order, value, reader, graph.state(value), _Region({}, [])))
    result = _named(graph, min(ends, key=lambda end: end.order))
    return result._replace(nodes=len(graph.operations), cut=graph.cut)


def _order(graph: ValueGraph, value: int, reader: int) -> int:
    """Return the order in which a value was there: with its maker, or with its first reader."""
    maker = graph.values[value].maker
    at = reader if maker is None else maker
    return graph.operations[at].order if at >= 0 else -1


def _region(graph: ValueGraph, value: int, spoilt: State) -> _Region:
    """Return the operations that may have made ``value``, and the values that explain it: the likeliest kind alone.
    Parameters are read only if no other value explains it."""
    maker = graph.values[value].maker
    if maker is None:
        return _Region({}, [])
    pending, members, parameters = [maker], {maker: False}, dict[int, int]()
    causes: list[_Cause] = []
    while pending and not graph.expired():
        operation = pending.pop()
        hidden = members[operation] or graph.confines(operation, spoilt) or graph.confines(operation, "-inf")
        for source in graph.operations[operation].inputs:
            if graph.values[source].name:
                parameters.setdefault(source, operation)
                continue
            state, before = graph.state(source), graph.values[source].maker
            if state == "unknown" and before is not None and before not in members:
                members[before] = hidden
                pending.append(before)
            elif state not in ("finite", "unknown"):
                confined = graph.confines(operation, state) or (members[operation] and state == "-inf")
                causes.append(_Cause(source, operation, state, confined))
    likeliest = _likeliest(causes, spoilt)
    if not likeliest:
        read = (_Cause(value, operation, graph.state(value), False) for value, operation in parameters.items())
        likeliest = _likeliest([cause for cause in read if cause.state not in ("finite", "unknown")], spoilt)
    return _Region(members, likeliest)


def _likeliest(causes: Sequence[_Cause], spoilt: State) -> list[_Cause]:
    """Return the causes of the likeliest kind: NaN makes NaN, Inf makes either, and what may be meant comes last."""
    infinite = ("inf", "-inf")
    ranks: list[list[_Cause]] = [
        [cause for cause in causes if cause.state in infinite and not cause.confined],
        [cause for cause in causes if cause.state in infinite and cause.confined],
    ]
    if spoilt == "nan":
        bad = [cause for cause in causes if cause.state == "nan"]
        ranks = [[c for c in bad if not c.confined], [c for c in bad if c.confined], ranks[0]]
    return next((rank for rank in ranks if rank), [])


def _named(graph: ValueGraph, end: _End) -> Beginning:
    """Return the beginning in a value that no other explains."""
    graph_value, spoilt = graph.values[end.value], _spoilt(end.state)
    if graph_value.name:
        return Beginning(
            "parameter", "", owner(graph_value.name), owner(graph_value.name), spoilt, parameter=graph_value.name
        )
    if graph_value.maker is None:
        reader = graph.operations[end.reader] if end.reader >= 0 else None
        module = "" if reader is None else common_owner(reader.parameters) or _next(graph, [end.reader])
        return Beginning("input", "" if reader is None else reader.name, "", module, spoilt)
    doubts = _doubts(graph, end.region.operations or [graph_value.maker], end.state)
    suspects = _suspects(graph, doubts, end.region.operations)
    if not suspects:
        return Beginning("unknown", "", _last(graph, [*doubts]), _behind(graph, graph_value.maker), spoilt)
    first, last = graph.operations[suspects[0]], graph.operations[suspects[-1]]
    after = common_owner(first.parameters) or _last(graph, suspects[:1])
    before = common_owner(last.parameters) or _next(graph, suspects[-1:])
    names = dict.fromkeys(graph.operations[suspect].name for suspect in suspects)
    module = first.module if first.module == last.module else ""
    return Beginning("operation", " or ".join(names), after, before, spoilt, module=module)


def _spoilt(state: State) -> Spoilt:
    return "nan" if state == "nan" else "inf"


def _doubts(graph: ValueGraph, members: Iterable[int], state: State) -> dict[int, int]:
    """Return the operations of a region in their order with their doubts, but for those that cannot have made such
    numbers, out of others that cannot: their values are as good as known to be finite."""
    doubts: dict[int, int] = {}
    ordered = sorted(members, key=lambda member: graph.operations[member].order)
    for member in ordered:
        doubt = graph.doubt(member, state)
        if doubt or not doubts.keys().isdisjoint(_makers(graph, member)):
            doubts[member] = doubt
    return doubts or dict.fromkeys(ordered, 0)


def _suspects(graph: ValueGraph, doubts: Mapping[int, int], hidden: Mapping[int, bool]) -> list[int]:
    """Return the operations of a region that may have made the numbers, the likeliest ones in their order; none if
    several modules lie in the region, and no operation is certain."""
    certain = [member for member, doubt in doubts.items() if doubt == CERTAIN]
    if certain:
        return [min(certain, key=lambda member: hidden.get(member, False))]
    modules = {common_owner(graph.operations[member].parameters) for member, doubt in doubts.items() if doubt} - {""}
    highest = max(doubts.values())
    suspects = [member for member, doubt in doubts.items() if doubt == highest]
    return suspects if len(modules) < 2 and len(suspects) <= SUSPECTS else []


def _last(graph: ValueGraph, members: Sequence[int]) -> str:
    """Return the last module with parameters that lies before ``members``."""
    makers = {maker for member in members for maker in _makers(graph, member)}
    return _nearest(graph, makers.difference(members), backwards=True)


def _next(graph: ValueGraph, members: Sequence[int]) -> str:
    """Return the first module with parameters that lies behind ``members``."""
    consumers = _consumers(graph)
    return _nearest(graph, [reader for member in members for reader in consumers.get(member, ())], backwards=False)


def _behind(graph: ValueGraph, maker: int) -> str:
    """Return the module that uses a value of ``maker``, or the first behind it."""
    module = common_owner(graph.operations[maker].parameters)
    return module or _next(graph, [maker])


def _nearest(graph: ValueGraph, starts: Iterable[int], backwards: bool) -> str:
    """Return the module of the nearest operation with parameters, in the order of the step."""
    sign, consumers = (-1, dict[int, list[int]]()) if backwards else (1, _consumers(graph))
    seen = set(starts)
    pending = [(sign * graph.operations[start].order, start) for start in seen]
    heapq.heapify(pending)
    while pending:
        _, operation = heapq.heappop(pending)
        if module := common_owner(graph.operations[operation].parameters):
            return module
        for neighbour in _makers(graph, operation) if backwards else consumers.get(operation, ()):
            if neighbour not in seen:
                seen.add(neighbour)
                heapq.heappush(pending, (sign * graph.operations[neighbour].order, neighbour))
    return ""


def _makers(graph: ValueGraph, operation: int) -> Iterator[int]:
    """Yield the operations whose values ``operation`` reads."""
    for value in graph.operations[operation].inputs:
        if (maker := graph.values[value].maker) is not None:
            yield maker


def _consumers(graph: ValueGraph) -> dict[int, list[int]]:
    """Return the operations that read values of each operation."""
    consumers: dict[int, list[int]] = {}
    for number in range(len(graph.operations)):
        for maker in _makers(graph, number):
            consumers.setdefault(maker, []).append(number)
    return consumers
