"""Endpoints of the page: all of them read, and runs are named by numbers."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import anyio.to_thread
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from probe.core.analysis.performance.export import performance_picture
from probe.core.analysis.performance.time_use import OTHER
from probe.core.analysis.pictures.cells import RANKS, CellArrays, Picture, Span
from probe.core.analysis.pictures.packing import packed
from probe.core.analysis.pictures.run_details import run_details
from probe.core.naming import RUN
from probe.core.storage.layout import MICRO_STEP
from probe.core.storage.location import located
from probe.core.storage.run_directory import plain
from probe.services.web.answers import Handler, failures, json_answer, page_file
from probe.services.web.gate import Gate, reads_only, same_site, token_cookie
from probe.view import heatmap
from probe.view.background import comparison_arguments
from probe.view.events import MOST_STREAMS, ChangeLog, events, parsed_cursor
from probe.view.findings import MOST_SHOWN, chosen, health_of, short_text
from probe.view.located_row import located_row
from probe.view.run_files import RunGone
from probe.view.run_list import ListedRun, RunList
from probe.view.run_summary import RunSummary
from probe.view.viewed_run import ViewedRun, version_of

HIGHEST = 2**53
"""Limit of whole numbers: JavaScript has no larger ones."""
MOST_LISTED = 1000
MOST_AT_ONCE = 3
"""Requests that read files at a time."""

R = TypeVar("R")


class WrongRequest(Exception):  # noqa: N818 - the request is wrong, nothing has failed
    """A parameter that cannot be used."""


class ViewEndpoints:
    """Functions of the paths."""

    def __init__(self, runs: RunList, log: ChangeLog) -> None:
        self._runs, self._log = runs, log
        self._limit = anyio.CapacityLimiter(MOST_AT_ONCE)
        self.is_ending: Callable[[], bool] = lambda: False
        """Function that returns whether the server ends, and streams with it."""

    def routes(self) -> list[Route]:
        """Return the paths."""
        of_run = "/api/runs/{number:int}"
        return [
            Route("/", self.index),
            Route("/page/{name}", self.file),
            Route("/api/runs", self.runs),
            Route(of_run, self._answer(self._run)),
            Route(f"{of_run}/findings", self._answer(self._findings)),
            Route(f"{of_run}/heatmap", self._answer(self._heatmap)),
            Route(f"{of_run}/curve", self._answer(self._curve)),
            Route(f"{of_run}/row", self._answer(self._row)),
            Route(f"{of_run}/numbers", self._answer(self._numbers)),
            Route(f"{of_run}/details", self._answer(self._details)),
            Route(f"{of_run}/performance", self._answer(self._performance)),
            Route("/api/compare", self.compare),
            Route("/api/events", self.events),
        ]

    async def index(self, _: Request) -> Response:
        """Return the page."""
        return page_file("index.html")

    async def file(self, request: Request) -> Response:
        """Return a file of the page."""
        return page_file(request.path_params["name"])

    async def runs(self, request: Request) -> Response:
        """Return the runs that are asked for, of all that there are."""
        query = AddressParameters(request)
        order, text = query.choice("sort", list(ORDERS), "changed"), query.text("filter").lower()
        limit, offset = query.whole("limit", 200, 1, MOST_LISTED), query.whole("offset", 0)
        everything = self._runs.runs
        every = [run for run in everything if text in f"{run.name} {run.place}".lower()]
        every.sort(key=lambda run: _sort_key(ORDERS[order], run), reverse=order == "changed")
        if query.text("descending"):
            every.reverse()
        shown = every[offset : offset + limit]
        await self._on_thread(self._read_some, [run for run in shown if run.summary is None])
        known = sum(run.summary is not None for run in everything)
        return page_data(
            {
                "runs": [self._listed(run) for run in shown if not run.gone],
                "total": len(every),
                "known": known,
                "cursor": str(self._log.cursor),
                "problem": self._runs.problem,
            }
        )

    def _read_some(self, runs: Sequence[ListedRun]) -> None:
        """Read the summaries of some runs that were never read, within the time that a person waits."""
        deadline = time.monotonic() + READ_SECONDS
        for run in runs:
            if time.monotonic() > deadline:
                return
            self._runs.read(run)

    def _listed(self, run: ListedRun) -> dict[str, Any]:
        """Return the fields of a run in the list."""
        summary = run.summary
        fields: dict[str, Any] = {"number": run.number, "name": run.name, "location": run.place}
        if summary is None:
            nothing = dict.fromkeys((*RunSummary._fields, "steps"))
            return {**fields, **nothing, "known": False, "problems": [], "analysis": "none", "analysis_error": ""}
        analysis = self._runs.tasks.result(("analysis", run.place, run.directory))
        findings, cause = summary.findings, summary.first_cause
        if analysis is not None and analysis.answer is not None:
            answer = analysis.answer
            findings = answer["number"] + len(answer["run_numbers"]) or findings
            cause = short_text(answer["diagnosis"]) if answer["diagnosis"] else None
            fields |= {"verdict": answer["verdict"], "loss": answer["loss"]}
            fields["health"] = health_of(analysis.state, answer, findings or 0, summary.findings)
        return {
            **fields,
            "known": True,
            **summary._asdict(),
            "findings": findings,
            "first_cause": cause,
            "steps": max(summary.last_step - summary.first_step + 1, 0),
            "analysis": "none" if analysis is None else analysis.state,
            "analysis_error": "" if analysis is None else analysis.error,
        }

    def _answer(self, read: Callable[[ViewedRun, ListedRun, AddressParameters], Response]) -> Callable[[Request], Any]:
        """Return an endpoint that reads a run on a thread."""

        async def endpoint(request: Request) -> Response:
            run = self._listed_run(request.path_params["number"])
            try:
                return await self._on_thread(
                    lambda: read(self._runs.viewed(run.number), run, AddressParameters(request))
                )
            except RunGone:
                self._runs.forget(run)
                raise

        return endpoint

    def _listed_run(self, number: int) -> ListedRun:
        run = self._runs.run(number)
        if run is None:
            raise HTTPException(404, f"run {number}: there is no run of this number; see the list of runs")
        if run.gone:
            raise HTTPException(410, f"run {number}: {run.place} has been removed")
        return run

    async def _on_thread(self, function: Callable[..., R], *arguments: Any) -> R:
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._limit)

    def _run(self, viewed: ViewedRun, run: ListedRun, _: AddressParameters) -> Response:
        about = viewed.about()
        self._runs.read(run)
        diagnosis, analysis = viewed.diagnosis()
        fields = {**self._listed(run), **about, **diagnosis.fields(MOST_SHOWN)}
        recorded = None if run.summary is None else run.summary.findings
        fields["health"] = health_of(analysis.state, analysis.answer, fields["finding_total"], recorded)
        fields |= {"analysis": analysis.state, "analysis_error": analysis.error, "recorded_findings": recorded}
        fields["progress"] = self._runs.tasks.progress(viewed.key)
        fields["analysis_command"] = f"probe anomalies {shlex.quote(run.place)}"
        fields["problems"] = list(dict.fromkeys([*viewed.reader.problems(), *fields["problems"]]))
        return page_data(fields)

    def _findings(self, viewed: ViewedRun, _: ListedRun, query: AddressParameters) -> Response:
        wanted = {
            "rank": query.optional("rank"),
            "rule": query.text("rule") or None,
            "row": query.text("row") or None,
            "signal": query.text("signal") or None,
            "from": query.optional("from"),
            "to": query.optional("to"),
        }
        limit, offset = query.whole("limit", 200, 0, MOST_LISTED), query.whole("offset", 0)
        found = chosen(viewed.diagnosis()[0].findings, wanted)
        return page_data({"total": len(found), "findings": [each.shown for each in found[offset : offset + limit]]})

    def _heatmap(self, viewed: ViewedRun, _: ListedRun, query: AddressParameters) -> Response:
        signal, op, span = self._signal(viewed, query), query.text("op"), query.span()
        _check_op(viewed, signal, op)
        columns = query.whole("columns", 800, 1, heatmap.MOST_COLUMNS)
        rank = query.optional("rank")
        by_rank = query.choice("axis", ["rows", "ranks"], "rows") == "ranks"
        if by_rank:
            row = query.text("row")
            order = viewed.order(query.text("order"))
            picture = heatmap.heatmap_of_ranks(viewed.reader, signal, op, span, columns, row, order)
        else:
            picture = heatmap.heatmap_of_rows(viewed.reader, viewed.levels, signal, op, span, columns, rank)
        found = chosen(viewed.diagnosis()[0].findings, {"signal": signal, "rank": None if by_rank else rank})
        if by_rank:
            found = [each for each in found if each.row == row]
        places = {line: n for n, line in enumerate(picture.lines)}
        pairs = ((places.get(each.rank if by_rank else each.row), _column(picture.steps, each.step)) for each in found)
        marks = sorted({pair for pair in pairs if None not in pair})
        header = {"lines": picture.lines, "steps": picture.steps, "findings": marks, "exact": picture.exact}
        return binary_answer(header, heatmap_arrays(picture.cells))

    def _curve(self, viewed: ViewedRun, _: ListedRun, query: AddressParameters) -> Response:
        signal, op = self._signal(viewed, query), query.text("op")
        _check_op(viewed, signal, op)
        points = query.whole("points", 2000, 1, heatmap.MOST_POINTS)
        found = heatmap.row_curves(viewed.reader, signal, op, query.text("row"), query.span(), query.ranks(), points)
        return curve_answer(found, "ranks")

    def _numbers(self, viewed: ViewedRun, _: ListedRun, query: AddressParameters) -> Response:
        names = [name for name in query.text("names").split(",") if name]
        points = query.whole("points", 2000, 1, heatmap.MOST_POINTS)
        found = heatmap.run_curves(viewed.reader, names, query.span(), query.optional("rank"), points)
        return curve_answer(found, "names")

    def _row(self, viewed: ViewedRun, _: ListedRun, query: AddressParameters) -> Response:
        signal, row = self._signal(viewed, query), query.text("row")
        rank, step = query.needed("rank"), query.needed("step")
        found = located_row(viewed.reader, signal, row, rank, step, query.optional(MICRO_STEP))
        if found is None:
            raise HTTPException(404, f"{signal} {row}: rank {rank} has no such row at step {step}")
        return page_data({**found, "attributes": viewed.attributes(rank)})

    def _details(self, viewed: ViewedRun, _: ListedRun, __: AddressParameters) -> Response:
        return page_data(run_details(viewed.reader.listing().run))

    def _performance(self, viewed: ViewedRun, _: ListedRun, __: AddressParameters) -> Response:
        with viewed.reader.rows([RUN, OTHER]) as rows:
            found = performance_picture(rows, viewed.reader.listing().run, located(viewed.place))
        if found.data is None:
            raise HTTPException(404, "the run has no seconds of its steps")
        return page_data(found.data)

    def _signal(self, viewed: ViewedRun, query: AddressParameters) -> str:
        signal, there = query.text("signal"), [each["name"] for each in viewed.about()["signals"]]
        if signal not in there:
            raise WrongRequest(f"signal: expected one of {', '.join(there) or 'none, since the run has no rows'}")
        return signal

    async def compare(self, request: Request) -> Response:
        """Return the first difference of two runs, or that it is looked for."""
        query = AddressParameters(request)
        one, other = (self._listed_run(query.needed(name)) for name in ("run", "against"))
        return page_data(await self._on_thread(self._compared, one, other))

    def _compared(self, one: ListedRun, other: ListedRun) -> dict[str, Any]:
        sides = [(run.place, run.directory) for run in (one, other)]
        versions = [version_of(self._runs.viewed(run.number).reader.listing()) for run in (one, other)]
        found = self._runs.tasks.ask(("compare", *sides), comparison_arguments(*sides), tuple(versions))
        if found.state == "failed":
            return {"state": "failed", "error": found.error}
        if found.answer is None:
            return {"state": "running", "progress": self._runs.tasks.progress(("compare", *sides))}
        return {"state": "done", **found.answer}

    async def events(self, request: Request) -> Response:
        """Return the stream of changes."""
        if self._log.streams >= MOST_STREAMS:
            text = f"expected at most {MOST_STREAMS} pages at a time: close some of them"
            return page_data({"error": text}, 503, retry_after=10)
        query = AddressParameters(request)
        wanted = list(islice(query.ranks("runs") or (), 16))
        since = request.headers.get("last-event-id") or request.query_params.get("cursor")
        cursor = parsed_cursor(since, self._log)
        ended = self.is_ending
        stream = events(self._log, cursor, wanted, self._event_fields, lambda: self._look(wanted), ended)
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream, headers=headers)

    def _look(self, wanted: Sequence[int]) -> None:
        """Look at the runs that are shown."""
        for number in wanted:
            run = self._runs.run(number)
            if run is not None and not run.gone and self._runs.read(run) is not None:
                try:
                    self._runs.viewed(number).analysis()
                except (RunGone, OSError, ValueError):  # the next request names it
                    continue

    def _event_fields(self, number: int) -> dict[str, Any] | None:
        run = self._runs.run(number)
        if run is None or run.gone:
            return None
        fields = self._listed(run)
        return {name: fields.get(name) for name in ("number", "last_step", "findings", "alive", "analysis")}


READ_SECONDS = 0.3
"""Time in seconds in which summaries are read for a list."""


ORDERS = {
    "changed": "changed",
    "name": "name",
    "steps": "last_step",
    "ranks": "ranks",
    "findings": "findings",
    "cost": "cost",
    "number": "number",
}
"""Orders of the list, with the fields that they are by."""


def _sort_key(name: str, run: ListedRun) -> tuple[bool, Any, int]:
    if name in ("name", "number"):
        return False, getattr(run, name), run.number
    value = None if run.summary is None else getattr(run.summary, name)
    return value is None if name != "changed" else value is not None, value or 0, run.number


class AddressParameters:
    """Parameters in the query of an address."""

    def __init__(self, request: Request) -> None:
        self._query = request.query_params

    def text(self, name: str) -> str:
        """Return a text; empty if it is missing."""
        return self._query.get(name, "")

    def choice(self, name: str, known: Sequence[str], otherwise: str) -> str:
        """Return one of ``known``.

        Raises:
            WrongRequest: if there is another text.
        """
        text = self.text(name) or otherwise
        if text not in known:
            raise WrongRequest(f"{name}: expected one of {', '.join(known)}; got {text[:60]!r}")
        return text

    def optional(self, name: str) -> int | None:
        """Return a whole number; None if it is missing.

        Raises:
            WrongRequest: if there is another text.
        """
        return self.whole(name, 0) if self.text(name) else None

    def needed(self, name: str) -> int:
        """Return a whole number.

        Raises:
            WrongRequest: if it is missing, or there is another text.
        """
        if not self.text(name):
            raise WrongRequest(f"{name}: expected a whole number")
        return self.whole(name, 0)

    def whole(self, name: str, otherwise: int, low: int = 0, high: int = HIGHEST) -> int:
        """Return a whole number from ``low`` to ``high``.

        Raises:
            WrongRequest: if there is another text.
        """
        text = self.text(name)
        if not text:
            return otherwise
        if not (text.isascii() and text.isdigit() and len(text) <= 16) or int(text) < low:
            raise WrongRequest(f"{name}: expected a whole number from {low} to {high}; got {text[:60]!r}")
        return min(int(text), high)

    def span(self) -> Span:
        """Return the steps from ``from`` to ``to``."""
        first = self.whole("from", 0, 0, 2**40)
        return Span(first, max(self.whole("to", 2**40, 0, 2**40), first))

    def ranks(self, name: str = "ranks") -> heatmap.RankChoice | None:
        """Return the ranks of a text such as ``0-3,7``; None if it is missing.

        Raises:
            WrongRequest: if there is another text.
        """
        text = self.text(name)
        if not text:
            return None
        try:
            return heatmap.RankChoice(text)
        except ValueError:
            expected = f"expected numbers such as 0-3,7, of at most {heatmap.MOST_RANKS} spans"
            raise WrongRequest(f"{name}: {expected}; got {text[:60]!r}") from None


def _check_op(viewed: ViewedRun, signal: str, op: str) -> None:
    there = next(each["ops"] for each in viewed.about()["signals"] if each["name"] == signal)
    if op not in there:
        raise WrongRequest(f"op: expected one of {', '.join(there)}; got {op[:60]!r}")


def _column(steps: Sequence[tuple[int, int]], step: int) -> int | None:
    """Return the column that has a step."""
    from bisect import bisect_right

    at = bisect_right(steps, (step, math.inf)) - 1
    return at if at >= 0 and steps[at][0] <= step <= steps[at][1] else None


def page_data(body: object, status: int = 200, retry_after: int | None = None) -> Response:
    """Return an answer in JSON, with texts for numbers that it lacks."""
    return json_answer(status, plain(body), retry_after=retry_after)


def heatmap_arrays(cells: CellArrays) -> dict[str, Any]:
    """Return the arrays of a heatmap: those of the cells, and rank and step of the number that each shows."""
    arrays = {kind: cells[kind] for kind in ("minimum", "maximum", "least", "nan", "inf")}
    places, missing = RANKS.of(cells), cells["count"] == 0
    return {**arrays, "step": places.step.astype("<f8"), "rank": np.where(missing, -1, places.directory).astype("<i4")}


def binary_answer(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Response:
    """Return an answer with some arrays."""
    return Response(packed(header, arrays.items()), media_type="application/octet-stream")


def curve_answer(found: Picture, lines: str) -> Response:
    """Return an answer with curves, whose lines have a name."""
    header = {"steps": [first for first, _ in found.steps], "spans": found.steps, lines: found.lines}
    return binary_answer(header, {kind: found.cells[kind] for kind in heatmap.SENT})


def _answered(status: int, text: str = "") -> Handler:
    """Return a handler of exceptions, which answers with the text of each unless there is another."""

    async def handle(_: Request, error: Exception) -> Response:
        return page_data({"error": text or str(error)}, status)

    return handle


def application(endpoints: ViewEndpoints, token: str, cookie: str, is_host: Callable[[str], bool]) -> Gate:
    """Return the application behind its gate."""
    handlers: dict[Any, Any] = {
        **failures(),
        WrongRequest: _answered(400),
        RunGone: _answered(410),
        ValueError: _answered(503),
        OSError: _answered(503),
        Exception: _answered(500, "internal error: the program's own output has it"),
    }
    inner = Starlette(routes=endpoints.routes(), exception_handlers=handlers)
    return Gate(inner, [reads_only, same_site(is_host), token_cookie(token, cookie)])
