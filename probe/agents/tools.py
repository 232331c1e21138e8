"""Tools that read runs: each takes its arguments, and returns the fields of its answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from probe.agents.answers import (
    Answer,
    WrongArgument,
    bounded,
    chosen_name,
    number,
    sentence,
    short_name,
)
from probe.agents.arguments import (
    CompareArguments,
    CurveArguments,
    ExplainArguments,
    FindingsArguments,
    HeatmapArguments,
    OneRunArguments,
    RowArguments,
    RunsArguments,
    SignalsArguments,
)
from probe.core.analysis.pictures.cells import RANKS, CellArrays, Picture, Span
from probe.core.analysis.report.findings import Mark
from probe.core.config.reference import references
from probe.core.moments import OPS
from probe.core.naming import LOSS_ROOT, RUN, SIGNALS
from probe.core.storage.layout import STEP
from probe.view.background import TaskResult, comparison_arguments
from probe.view.findings import chosen, health_of
from probe.view.heatmap import RankChoice, heatmap_of_ranks, heatmap_of_rows, row_curves, run_curves
from probe.view.located_row import located_row
from probe.view.run_list import ListedRun, RunList
from probe.view.viewed_run import ViewedRun, version_of

WAIT_SECONDS = 45.0
"""Longest wait for an analysis: clients give a call up after a minute."""
READ_SECONDS = 5.0
"""Longest time in which runs that were never read are read for a list."""
MOST_TEXTS = 5
"""Notes and problems of an answer."""
MOST_PLACES = 10
"""Places of a verdict."""
MOST_NUMBERS = 20
"""Numbers and facts of a run that are listed beside its signals."""
MOST_RANKS = 16
"""Curves of an answer."""
AGAIN = "the same call again"
REQUIRED = "a run of this server, by number, name or path; `runs` lists them"


class RunTools:
    """Tools over the runs in one folder.

    Args:
        folder: the folder, or its URL.
        wait_seconds: longest wait for an analysis.
    """

    def __init__(self, runs: RunList, folder: str, wait_seconds: float = WAIT_SECONDS) -> None:
        self._runs, self._folder, self._wait_seconds = runs, folder, wait_seconds

    def runs(self, query: RunsArguments) -> Answer:
        """List the runs, the one that changed last first: number, name, path, steps, ranks, and the findings that the
        run itself has counted. Begin here."""
        runs = self._by_change()
        text = query.text.casefold()
        listed = [run for run in runs if text in f"{run.name} {self._path(run)}".casefold()]
        entries = [self._entry(run) for run in listed[query.offset : query.offset + query.limit]]
        fields = {"folder": short_name(self._folder), "problem": self._runs.problem}
        return bounded(fields, "runs", entries, (query.offset, query.limit, len(listed)))

    def signals(self, query: SignalsArguments) -> Answer:
        """List the signals of a run with their ops and steps, the numbers of the run, its ranks and facts; with
        `signal`, the rows of that signal."""
        run, viewed = self._viewed(query.run)
        about = viewed.about()
        fields: Answer = {"run": self._named(run)}
        if query.signal:
            return _rows_answer(fields, viewed, query)
        numbers = [*map(short_name, about["numbers"])]
        rest = max(0, len(numbers) - MOST_NUMBERS)
        facts = {title: short_name(text) for title, text in [*about["facts"].items()][:MOST_NUMBERS]}
        fields |= {"ranks": about["rank_list"], "missing_ranks": about["missing_ranks"], "facts": facts}
        fields |= {"numbers": numbers[:MOST_NUMBERS], "numbers_left_off": rest}
        fields |= {"ask_for_numbers": f"signals with signal={RUN}"} if rest else {}
        signals = [
            {**signal, "meaning": sentence(signal["meaning"], [signal["name"]]), "rows": len(signal["rows"])}
            for signal in about["signals"]
        ]
        return bounded(fields, "signals", signals[query.offset :], (query.offset, query.limit, len(signals)))

    def verdict(self, query: OneRunArguments) -> Answer:
        """Return the first cause of what went wrong in a run: kind, place (`where`), ranks, step, evidence and next
        steps, as `probe anomalies --json` has it. `first_row` has the arguments with which `row`, `curve` and
        `heatmap` show it. The run is analysed at the first call, which can take a minute."""
        run, viewed = self._viewed(query.run)
        result, fields = self._analysed(run, viewed)
        if result.answer is None:
            return fields
        answer, diagnosis = result.answer, viewed.diagnosis()[0]
        findings = max(diagnosis.total, len(diagnosis.findings))
        recorded = None if run.summary is None else run.summary.findings
        verdict = {name: value for name, value in answer["verdict"].items() if name not in ("lines", "zh")}
        names = [*verdict["where"], *answer["judged"]["signals"], *(finding.row for finding in diagnosis.findings)]
        verdict["where_left_off"] = max(0, len(verdict["where"]) - MOST_PLACES)
        verdict["where"] = [*map(short_name, verdict["where"][:MOST_PLACES])]
        verdict["text"] = sentence(verdict["text"], names)
        verdict["looked"] = {
            name: [sentence(text, names) for text in texts] for name, texts in verdict["looked"].items()
        }
        verdict["before"] = [sentence(text, names) for text in verdict["before"][:MOST_TEXTS]]
        cause = diagnosis.cause
        first = None if cause is None else {name: cause[name] for name in ("signal", "row", "op", "rank", "step")}
        return {
            **fields,
            "health": health_of(result.state, answer, findings, recorded),
            "verdict": verdict,
            "first_row": None if first is None else {**first, "row": short_name(first["row"])},
            "findings": findings + sum("text" in entry for entry in answer["findings"]),
            "judged": answer["judged"],
            "missing_ranks": answer["missing_ranks"],
            **_texts("notes", answer["notes"], names),
            **_texts("problems", answer["problems"], names),
        }

    def findings(self, query: FindingsArguments) -> Answer:
        """List findings in the order of steps, those of a step in the order of cause: of rules about rows and numbers
        of the run (`of` is `row`), and of checks of the training loop (`of` is `check`)."""
        run, viewed = self._viewed(query.run)
        result, fields = self._analysed(run, viewed)
        if result.answer is None:
            return fields
        diagnosis = viewed.diagnosis()[0]
        same = {"rank": query.rank, "rule": query.rule or None, "signal": query.signal or None}
        wanted = {**same, "from": query.first_step, "to": query.last_step}
        rows = [row for row in chosen(diagnosis.findings, wanted) if query.row in ("", row.row, short_name(row.row))]
        entries = [*map(_row_finding, rows)]
        if not query.signal and not query.row:
            checks = [_check_finding(entry) for entry in result.answer["findings"] if "text" in entry]
            entries += [entry for entry in checks if _agrees(entry, query)]
        entries.sort(key=lambda entry: entry["step"])
        fields["not_kept"] = max(0, diagnosis.total - len(diagnosis.findings))
        return bounded(fields, "findings", entries[query.offset :], (query.offset, query.limit, len(entries)))

    def curve(self, query: CurveArguments) -> Answer:
        """Return a number over steps: the loss, another number of the run, or a row of a signal on each rank. NaN and
        the infinities are texts; null is a step without a number."""
        run, viewed = self._viewed(query.run)
        span = _span(query.first_step, query.last_step)
        fields: Answer = {"run": self._named(run)}
        ranks = _ranks(query.ranks)
        if query.signal:
            signal = _signal(viewed, query.signal)
            row, op = chosen_name("name", query.name, signal["rows"]), _op(signal, query.op)
            found = row_curves(viewed.reader, signal["name"], op, row, span, ranks, query.points)
            fields |= {"signal": signal["name"], "row": short_name(row), "op": op}
        else:
            name = chosen_name("name", query.name or _loss(viewed), viewed.about()["numbers"])
            rank = None if ranks is None else next(iter(ranks), None)
            found = run_curves(viewed.reader, [name], span, rank, query.points)
            fields |= {"number": short_name(name)}
        cells, of = found.cells, "rank" if query.signal else "number"
        lines = [
            {of: short_name(line) if isinstance(line, str) else line, "values": _values(cells, n, "largest")}
            for n, line in enumerate(found.lines)
        ]
        fields |= {"steps": [*map(_column, found.steps)]}
        total = sum(ranks is None or rank in ranks for rank in viewed.reader.listing().run.ranks)
        page = 0, MOST_RANKS, total if query.signal else len(lines)
        return bounded(
            fields, "curves", lines, page, f"again with other ranks: the run has {viewed.about()['rank_list']}"
        )

    def heatmap(self, query: HeatmapArguments) -> Answer:
        """Return the rows of a signal over steps as numbers, in the order of the model; or, with `row`, the ranks of
        that row. NaN and the infinities are texts, null is no number; `not_finite` is the first such column with its
        rank. Narrow `first_step` and `last_step` to the steps around the verdict for single steps."""
        run, viewed = self._viewed(query.run)
        signal = _signal(viewed, query.signal)
        op, span = _op(signal, query.op), _span(query.first_step, query.last_step)
        if query.row:
            row, order = chosen_name("row", query.row, signal["rows"]), viewed.order("rank")
            picture = heatmap_of_ranks(viewed.reader, signal["name"], op, span, query.columns, row, order)
        else:
            rank, columns = query.rank, query.columns
            picture = heatmap_of_rows(viewed.reader, viewed.levels, signal["name"], op, span, columns, rank)
        text = query.text.casefold()
        lines = [n for n, line in enumerate(picture.lines) if query.row or text in line.casefold()]
        entries = [_line(picture, n, query) for n in lines[query.offset : query.offset + query.limit]]
        fields: Answer = {"run": self._named(run), "signal": signal["name"], "op": op, "exact": picture.exact}
        fields |= {"row": short_name(query.row)} if query.row else {}
        fields |= {"steps": [*map(_column, picture.steps)]}
        return bounded(fields, "lines", entries, (query.offset, query.limit, len(lines)))

    def row(self, query: RowArguments) -> Answer:
        """Return all numbers of a row in a step, its shape and dtype, the recorded steps before and after it, and the
        file and line that it is read from."""
        run, viewed = self._viewed(query.run)
        signal = _signal(viewed, query.signal)
        row = chosen_name("row", query.row, signal["rows"])
        found = located_row(viewed.reader, signal["name"], row, query.rank, query.step, query.micro_step)
        if found is None:
            ranks = viewed.about()["rank_list"]
            first, last = _steps_of(viewed, signal["name"])
            recorded = f"steps {first} to {last} of ranks {ranks}, as far as recorded"
            raise WrongArgument("step", f"a step and a rank at which the row was recorded: {recorded}", (), query.step)
        values = {name: number(value, 9) for name, value in found["values"].items()}
        return {"run": self._named(run), **found, "row": short_name(row), "values": values}

    def compare(self, query: CompareArguments) -> Answer:
        """Compare two runs: return whether they agree within rounding, and the first rows that differ, in the order of
        cause. Compare a broken run with a healthy one of the same program."""
        one, other = self._run("run", query.run), self._run("against", query.against)
        sides = [(run.place, run.directory) for run in (one, other)]
        fields: Answer = {"run": self._named(one), "against": self._named(other)}
        versions = tuple(version_of(self._runs.viewed(run.number).reader.listing()) for run in (one, other))
        self._runs.tasks.ask(("compare", *sides), comparison_arguments(*sides), versions)
        result = self._runs.tasks.wait(("compare", *sides), self._wait_seconds)
        fields |= _state(result)
        if result.answer is None:
            return fields
        answer = result.answer
        rows = answer["differences"]
        names = [*(row[name] for row in rows for name in ("row", "row_b")), *(jump[3] for jump in answer["jumps"])]
        fields |= {name: answer[name] for name in ("same", "agrees", "tolerance", "beyond")}
        fields |= {"verdict": sentence(answer["verdict"], names), **_texts("about", answer["about"], names)}
        fields |= _texts("problems", answer["problems"], names)
        differences = [_difference(row, names) for row in rows]
        page = 0, query.limit, max(answer["beyond"], len(rows))
        return bounded(fields, "differences", differences, page, "again with a limit of up to 20, or `probe compare`")

    def explain(self, query: ExplainArguments) -> Answer:
        """Explain a key of the configuration, a rule, a check, a signal or an op: meaning, type, default, reason and
        remedy. It reads no run."""
        if query.name in SIGNALS:
            return {"signal": query.name, "meaning": SIGNALS[query.name].meaning}
        if query.name in OPS:
            return {"op": query.name, "meaning": OPS[query.name].meaning}
        try:
            found = references(query.name)
        except ValueError as error:
            expected = f"a key of the configuration, a rule, a check, a signal or an op: {error}"
            raise WrongArgument("name", expected, (), query.name) from None
        entries = [*(key._asdict() for key in found.keys), *(judge._asdict() for judge in found.judges)]
        if len(found.keys) > 5:
            entries = [{"key": key.key, "rule": key.rule, "meaning": key.short} for key in found.keys]
        page = 0, len(entries), len(entries)
        return bounded({"name": query.name}, "explanations", entries, page, "again with a longer key")

    def _by_change(self) -> list[ListedRun]:
        """Return the runs, the one that changed last first; those that were never read are read for it."""
        deadline = time.monotonic() + READ_SECONDS
        for run in self._runs.runs:
            if run.summary is None and time.monotonic() < deadline:
                self._runs.read(run)
        return sorted(self._runs.runs, key=lambda run: (-run.summary.changed if run.summary else 0, run.number))

    def _run(self, argument: str, text: str) -> ListedRun:
        """Return the run that a text names: nothing but a run of the list, so that no text leads out of the folder."""
        runs = self._by_change()
        named = [run for run in runs if text == str(run.number)] if text else runs[:1]
        named = named or [run for run in runs if text in (run.name, self._path(run), short_name(run.name))]
        if len(named) != 1:
            expected = REQUIRED if runs else "a run; there is none in the folder of this server yet"
            if named:
                expected = "the number of one run, since several have this name"
            raise WrongArgument(argument, expected, [str(run.number) for run in named or runs], text)
        if self._runs.read(named[0]) is None:
            raise WrongArgument(argument, f"{REQUIRED}: this one has been removed", (), text)
        return named[0]

    def _viewed(self, text: str) -> tuple[ListedRun, ViewedRun]:
        run = self._run("run", text)
        return run, self._runs.viewed(run.number)

    def _path(self, run: ListedRun) -> str:
        """Return the path of a run below the folder of the server."""
        with suppress(ValueError):
            return str(Path(run.place).relative_to(self._folder))
        return run.place

    def _named(self, run: ListedRun) -> Answer:
        return {"number": run.number, "name": short_name(run.name)}

    def _entry(self, run: ListedRun) -> Answer:
        summary = run.summary
        entry = {**self._named(run), "path": short_name(self._path(run)), "known": summary is not None}
        if summary is None:
            return entry
        changed = datetime.fromtimestamp(summary.changed, timezone.utc).isoformat(timespec="seconds")
        return {
            **entry,
            "alive": summary.alive,
            "changed": changed,
            "first_step": summary.first_step,
            "last_step": summary.last_step,
            "ranks": summary.ranks,
            "findings": summary.findings,
            **_texts("problems", summary.problems, ()),
        }

    def _analysed(self, run: ListedRun, viewed: ViewedRun) -> tuple[TaskResult, Answer]:
        """Return the analysis of a run, for which a call waits, and the first fields of an answer."""
        viewed.analysis()
        result = self._runs.tasks.wait(viewed.key, self._wait_seconds)
        return result, {"run": self._named(run), **_state(result)}


def _state(result: TaskResult) -> Answer:
    """Return the state of an analysis: what was not analysed is not reported as healthy."""
    state: Answer = {"state": result.state}
    if result.state == "running":
        state["ask"] = AGAIN
    if result.state == "failed":
        state["error"] = sentence(result.error, ())
    return state


def _signal(viewed: ViewedRun, name: str) -> Answer:
    """Return the facts of a signal of a run."""
    signals = {signal["name"]: signal for signal in viewed.about()["signals"]}
    signal: Answer = signals[chosen_name("signal", name, [*signals])]
    return signal


def _rows_answer(fields: Answer, viewed: ViewedRun, query: SignalsArguments) -> Answer:
    """Return the rows of a signal, or the numbers of the run."""
    names = viewed.about()["numbers"]
    if query.signal != RUN:
        signal = _signal(viewed, query.signal)
        names = signal["rows"]
        first, last = _steps_of(viewed, signal["name"])
        fields |= {"name": signal["name"], "ops": signal["ops"], "first_step": first, "last_step": last}
        fields["meaning"] = sentence(signal["meaning"], [signal["name"]])
    rows = [row for row in names if query.text.casefold() in row.casefold()]
    return bounded(fields, "rows", [*map(short_name, rows[query.offset :])], (query.offset, query.limit, len(rows)))


def _steps_of(viewed: ViewedRun, signal: str) -> tuple[int, int]:
    """Return the first and the last recorded step of a signal."""
    with viewed.reader.rows([signal]) as rows:
        query = f"SELECT min({STEP}), max({STEP}) FROM {rows.view(signal)}"  # noqa: S608 - our own words
        first, last = rows.connection.execute(query).fetchall()[0]
    return first, last


def _op(signal: Answer, op: str) -> str:
    ops: Sequence[str] = signal["ops"]
    return chosen_name("op", op, ops) if op else ops[0]


def _loss(viewed: ViewedRun) -> str:
    """Return the name of the loss: the one that the program logs, else that of the backward."""
    return next((name for name in ("loss", LOSS_ROOT) if name in viewed.about()["numbers"]), "loss")


def _span(first: int, last: int) -> Span:
    if last < first:
        raise WrongArgument("last_step", "a step that is not before first_step", (), last)
    return Span(first, last)


def _ranks(text: str) -> RankChoice | None:
    try:
        return RankChoice(text) if text else None
    except ValueError:
        raise WrongArgument("ranks", "ranks such as 0-3,7", (), text) from None


def _column(span: tuple[int, int]) -> int | list[int]:
    """Return a step, or the first and the last one of a column of several."""
    return span[0] if span[0] == span[1] else [*span]


def _values(cells: CellArrays, line: int, shown: str) -> list[float | int | str | None]:
    """Return the numbers of a line; a cell with a NaN is one, whatever else is in it."""
    array = cells["maximum" if shown == "largest" else "minimum"]
    return [
        "nan" if nan else None if not count else number(value)
        for value, nan, count in zip(array[line], cells["nan"][line], cells["count"][line], strict=True)
    ]


def _line(picture: Picture, line: int, query: HeatmapArguments) -> Answer:
    """Return a line of a heatmap: its values, and its first column with a number that is not finite."""
    cells, label = picture.cells, picture.lines[line]
    bad = [n for n in range(len(picture.steps)) if cells["nan"][line, n] or cells["inf"][line, n]]
    ranks = RANKS.of(cells).directory
    first = {"steps": _column(picture.steps[bad[0]]), "rank": int(ranks[line, bad[0]])} if bad else None
    of = {"rank": label} if query.row else {"row": short_name(label)}
    return {**of, "values": _values(cells, line, query.shown), "not_finite": first}


def _row_finding(finding: Mark) -> Answer:
    """Return a finding about a row without its sentence, which repeats the fields."""
    fields = {name: value for name, value in finding.shown.items() if name not in ("message", "order")}
    numbers = {"value": number(finding.value), "expected": number(finding.expected)}
    return {"of": "row", **fields, **numbers, "row": short_name(finding.row)}


def _check_finding(entry: Answer) -> Answer:
    ranks = entry["rank"] if isinstance(entry["rank"], list) else [entry["rank"]]
    text, where = sentence(entry["text"], [entry["where"]]), short_name(entry["where"])
    shown = {"grade": entry["grade"], "step": entry["step"], "found": entry["found"], "message": text}
    return {"of": "check", "rule": entry["kind"], "where": where, "ranks": ranks, **shown}


def _agrees(entry: Answer, query: FindingsArguments) -> bool:
    same = query.rule in ("", entry["rule"]) and (query.rank is None or query.rank in entry["ranks"])
    return same and query.first_step <= entry["step"] <= query.last_step


def _difference(row: Answer, names: Sequence[str]) -> Answer:
    """Return a row that differs, its names cut."""
    cut = {name: short_name(row[name]) for name in ("row", "row_b")}
    return {**row, **cut, "sentence": sentence(row["sentence"], names)}


def _texts(name: str, texts: Sequence[str], names: Iterable[str]) -> Answer:
    """Return the first of some sentences, with the count of the others."""
    rest = len(texts) - MOST_TEXTS
    shown = {name: [sentence(text, names) for text in texts[:MOST_TEXTS]]}
    return {**shown, f"{name}_left_off": rest} if rest > 0 else shown
