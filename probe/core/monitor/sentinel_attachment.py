"""The sentinel of a run, if it is configured and the framework shows what it needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from probe.core.backend.protocols import Shard
from probe.core.checks.update_facts import UpdateFacts
from probe.core.config.schema import Settings
from probe.core.control.armed_collection import ArmedCollection
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.instrumentation.context import SPLIT, Run
from probe.core.instrumentation.session import Session
from probe.core.monitor.process_exit import while_alive
from probe.core.monitor.reporting import Reporting
from probe.core.run_state.run_numbers import RunNumbers
from probe.core.sentinel.board import Board
from probe.core.sentinel.own_gradients import OwnGradients, own_gradients
from probe.core.sentinel.rank_lines import RankLines
from probe.core.sentinel.read_update import ReadUpdate
from probe.core.sentinel.sentinel import Sentinel
from probe.core.sentinel.update_judge import UpdateJudge


def attached(
    session: Session,
    settings: Settings,
    numbers: RunNumbers,
    directory: Callable[[], Path | None],
    reporting: Reporting,
    faults: Faults,
) -> tuple[UpdateJudge | None, ArmedCollection | None]:
    """Attach a sentinel to ``session`` until its end; return the judge of its updates and the collection around what it
    finds, None without a sentinel.

    Args:
        directory: returns the directory of this rank's files, on the thread of ``numbers``; None if there is none.
    """
    loop = session.steps.run.framework.loop
    if not settings.sentinel.enable or loop is None or not numbers.active:
        return None, None
    lines, gradients = None, None
    if reporting.board is not None:
        roles = _roles(session.steps.run)
        lines = partial(_lines, reporting.board, roles)
        gradients = None if roles.sharded else attempt(faults, "own gradients", own_gradients, session.steps.run)
    judge = UpdateJudge(numbers, directory, reporting.account, lines, faults)
    sentinel = Sentinel(
        session.steps, loop, judge.receive if gradients is None else partial(_with_own, judge, gradients)
    )
    if gradients is not None:
        session.remove_at_end(gradients.remove)
    session.remove_at_end(sentinel.attach())
    session.steps.update_listener = sentinel
    armed = ArmedCollection()
    armed.wake = while_alive(session.steps.unsettle)  # the thread of numbers does not keep the model alive
    judge.tripped, sentinel.roots.suspect = armed.receive, armed.suspect
    reporting.account.stretches = armed.stretches
    return judge, armed


def _with_own(judge: UpdateJudge, gradients: OwnGradients, update: ReadUpdate) -> None:
    judge.receive(update._replace(own=gradients.taken()))


class _Roles(NamedTuple):
    """Place of this rank among the others."""

    rank: int
    replicas: tuple[int, ...]
    """Ranks that hold the same gradients after reduction."""
    tensor_parallel: tuple[int, ...]
    split: frozenset[str]
    """Parameters that are marked as split over the tensor-parallel ranks."""
    sharded: bool
    """True if ranks hold parts of parameters, or train apart by intention: they have nothing in common."""
    world: int


def _roles(run: Run) -> _Roles:
    groups, parallel = run.framework.groups, run.framework.parallel
    models = [model for _, model in run.chunks]
    parameters = [named for model in models for named in run.framework.hooks.parameters(model)]
    loop = run.framework.loop
    apart = loop is not None and loop.part_ways(models)
    sharded = apart or any(_is_part(run, parameter) for _, parameter in parameters)
    replicas = () if sharded else tuple(run.replicas or groups.replicas(models))
    split = frozenset(name for name, parameter in parameters if getattr(parameter, SPLIT, False))
    tensor_parallel = tuple(parallel.named().get("tensor_parallel", ()))
    return _Roles(groups.rank(), replicas, tensor_parallel, split, sharded, groups.world_size())


def _is_part(run: Run, parameter: object) -> bool:
    """Return whether this process holds but a part of a parameter."""
    value = run.framework.hooks.value(run.optimizers[0], parameter)
    return value is None or type(value) is Shard or run.framework.tensors.describe(value)[2] is not None


def _lines(board: Board, roles: _Roles, facts: UpdateFacts) -> RankLines:
    """Return a writer of the lines of one optimizer."""
    marks = [name in roles.split for name in facts.names] if roles.split else []
    replicas, tensor_parallel = roles.replicas, roles.tensor_parallel
    return board.lines(roles.rank, facts.names, replicas, tensor_parallel, marks, roles.sharded, roles.world)
