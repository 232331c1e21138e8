"""Page of a node: everything that the exporter serves, as text for one scrape."""

from __future__ import annotations

import asyncio
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as MetricFamily
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from probe import __version__
from probe.core.faults import Faults
from probe.core.output.metrics.catalogue import (
    BUDGET,
    METRICS,
    PHASE,
    RANK_INFO,
    RANK_UP,
    SINCE,
    Metric,
    Series,
)
from probe.core.worker import Worker
from probe.services.exporter.json_numbers import GRADIENT_NORM, NUMBERS, UPDATED, JobNumbers, JsonNumbers
from probe.services.exporter.ranks import NodeRanks, ShownRank, short
from probe.services.exporter.reading_process import ReadingProcess, Sample
from probe.services.exporter.readings.catalogue import READINGS
from probe.services.web.answers import failures, json_answer
from probe.services.web.gate import Gate, admission
from probe.services.web.prometheus import Families, Samples, counter, gauge

OPENMETRICS = "application/openmetrics-text"
FILES = "files"
"""Name of the source of ranks and JSON files."""
Found = TypeVar("Found")


class NodeFiles(NamedTuple):
    """Contents of the files of a node at one moment."""

    ranks: Sequence[ShownRank]
    jobs: Sequence[JobNumbers]


class LateReader(Generic[Found]):
    """Reader on a thread of its own, since files may lie on a file system that does not answer.

    Args:
        read: function that reads.
    """

    def __init__(self, read: Callable[[], Found]) -> None:
        self._read = read
        self._pending: asyncio.Future[Found] | None = None
        self._worker = Worker("probe-files", FILES, Faults("the exporter goes on"), things="requests")

    async def latest(self, seconds: float) -> Found | None:
        """Return the result of a call that begins now or is under way; None if there is none within ``seconds``."""
        if self._pending is None or self._pending.done():
            self._pending = asyncio.get_running_loop().create_future()
            self._worker.submit(partial(self._answer, self._pending))
        pending = self._pending
        await asyncio.wait({pending}, timeout=seconds)
        return pending.result() if pending.done() else None

    def _answer(self, pending: asyncio.Future[Found]) -> None:
        try:
            settle = _succeeding(pending, self._read())
        except Exception as error:  # noqa: BLE001 - raised where the result is asked for
            settle = _failing(pending, error)
        with suppress(RuntimeError):  # the loop has ended
            pending.get_loop().call_soon_threadsafe(settle)


def _failing(pending: asyncio.Future[Found], error: Exception) -> Callable[[], None]:
    return lambda: None if pending.cancelled() else pending.set_exception(error)


def _succeeding(pending: asyncio.Future[Found], result: Found) -> Callable[[], None]:
    return lambda: None if pending.cancelled() else pending.set_result(result)


class NodePage:
    """Page of one node. Its coroutines run on one event loop.

    Args:
        ranks: ranks of the node.
        json_numbers: files of numbers.
        processes: processes of readings.
        deadline: longest time in seconds that files may take.
    """

    def __init__(
        self,
        ranks: NodeRanks,
        json_numbers: JsonNumbers,
        processes: Sequence[ReadingProcess] = (),
        deadline: float = 1.0,
    ) -> None:
        self._ranks, self._json, self._processes, self._deadline = ranks, json_numbers, processes, deadline
        self._files = LateReader(lambda: NodeFiles(ranks.look(), json_numbers.look()))
        self._text, self._faults = RankText(), Faults()
        self._own = ProcessCollector(registry=None)
        self._scrapes, self._seconds = 0, 0.0
        self._files_hung, self._files_at = False, time.monotonic()

    @property
    def hung(self) -> list[str]:
        """Sources that do not answer."""
        return [*([FILES] if self._files_hung else []), *(process.name for process in self._processes if process.hung)]

    async def text(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its type, in the format that the header ``Accept`` asks for."""
        began = time.perf_counter()
        files = await self._contents()
        # Of each format the version that both parts of the page have, whichever versions a scraper knows besides.
        openmetrics = OPENMETRICS in accept
        encoder, content_type = choose_encoder(f"{OPENMETRICS};version=1.0.0" if openmetrics else "")
        self._scrapes += 1
        text = self._text.text(files.ranks, self._gpus(), openmetrics=openmetrics)
        rest = encoder(Families(self._families(files)))
        self._seconds = time.perf_counter() - began
        return text.encode() + rest, content_type

    async def _contents(self) -> NodeFiles:
        """Return the contents of the files; nothing if they cannot be read in time."""
        try:
            files = await self._files.latest(self._deadline)
        except Exception as error:  # noqa: BLE001 - the rest is served
            self._faults.note("exporter: files", error)
            return NodeFiles((), ())
        self._files_hung = files is None
        if files is None:
            return NodeFiles((), ())
        self._files_at = time.monotonic()
        return files

    def _gpus(self) -> Mapping[int, Sequence[str]]:
        names: dict[int, Sequence[str]] = {}
        for process in self._processes:
            if (reading := process.reading) is not None:
                names.update(reading.processes)
        return names

    def _families(self, files: NodeFiles) -> Iterator[MetricFamily]:
        yield from _of_jobs(files.jobs)
        readings = [reading for process in self._processes if (reading := process.reading) is not None]
        yield from _of_samples(sample for reading in readings for sample in reading.samples)
        yield gauge(
            "probe_exporter_devices", "GPUs and NPUs that are read.", sum(reading.devices for reading in readings)
        )
        unreadable = sum(reading.unreadable for reading in readings)
        yield gauge("probe_exporter_unreadable_devices", "Devices of the driver that cannot be read.", unreadable)
        yield from self._of_files()
        yield from self._of_sources()
        version = [((__version__, platform.python_version()), 1)]
        labels = ["version", "python"]
        yield gauge("probe_exporter_build_info", "Version of the exporter; its value is 1.", version, labels)
        yield counter("probe_exporter_scrapes", "Scrapes.", self._scrapes)
        yield gauge("probe_exporter_scrape_seconds", "Seconds that the scrape before this one took.", self._seconds)
        yield from self._own.collect()

    def _of_files(self) -> Iterator[MetricFamily]:
        files = self._ranks.files
        for name, help_text, value in (
            ("unreadable_files", "Files that cannot be read.", files.unreadable + self._json.unreadable),
            ("unreadable_folders", "Folders of ranks that this user may not read.", files.unreadable_folders),
            ("hidden_ranks", "Processes whose job and rank another one has.", self._ranks.hidden),
            ("unknown_series", "Series of ranks that this version does not know.", self._text.unknown),
        ):
            yield gauge(f"probe_exporter_{name}", help_text, value)

    def _of_sources(self) -> Iterator[MetricFamily]:
        processes = self._processes
        hung = [((FILES,), self._files_hung), *(((process.name,), process.hung) for process in processes)]
        age = [((FILES,), time.monotonic() - self._files_at), *(((p.name,), p.age) for p in processes)]
        starts = [((process.name,), process.starts) for process in processes]
        malformed = [((process.name,), process.malformed) for process in processes]
        yield gauge("probe_exporter_probe_hung", "1 while a source does not answer in time.", hung, ["probe"])
        yield gauge(
            "probe_exporter_reading_age_seconds", "Seconds since the last reading of a source.", age, ["source"]
        )
        yield counter("probe_exporter_probe_starts", "Starts of the process of a source.", starts, ["probe"])
        yield counter(
            "probe_exporter_malformed_readings", "Lines and series that cannot be understood.", malformed, ["probe"]
        )


def _of_jobs(jobs: Sequence[JobNumbers]) -> Iterator[MetricFamily]:
    for key, metric in (*NUMBERS.items(), ("gradient_norm", GRADIENT_NORM)):
        if values := [((job.job,), job.values[key]) for job in jobs if key in job.values]:
            yield _family(metric, values)
    if jobs:
        yield _family(UPDATED, [((job.job,), job.written) for job in jobs])


def _of_samples(samples: Iterable[Sample]) -> Iterator[MetricFamily]:
    by_metric: dict[str, dict[tuple[str, ...], float]] = {}
    for sample in samples:
        # A command of the user may send what another source has too: a page has each series once.
        by_metric.setdefault(sample.metric, {})[sample.labels] = sample.value
    for name, values in by_metric.items():
        yield _family(READINGS[name], values.items())


def _family(metric: Metric, samples: Samples) -> MetricFamily:
    kind = counter if metric.kind == "counter" else gauge
    return kind(metric.name, metric.about, samples, metric.labels)


def application(page: NodePage, token: str | None, *, local: bool) -> Gate:
    """Return the ASGI application of the exporter.

    Args:
        page: its page.
        token: token that requests carry; None if none is needed.
        local: whether only this machine can connect.
    """

    async def metrics(request: Request) -> Response:
        content, kind = await page.text(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": kind})

    async def health(_: Request) -> Response:
        return json_answer(200, {"status": "ok", "hung": page.hung})

    routes = [Route("/metrics", metrics), Route("/health", health)]
    inner = Starlette(routes=routes, exception_handlers=failures())
    return Gate(inner, admission(token, "exporter", to_all=not local))


_ORDER = {name: number for number, name in enumerate(METRICS)}

Places = dict[str, list[tuple[str, int]]]
"""By metric: the beginnings of lines, with the end of the line before, and the places of their values in the row."""


class RankText:
    """Text of the series of ranks in the format of Prometheus or of OpenMetrics.

    It keeps the beginnings of the lines, which hardly ever change, from one scrape to the next: that takes a tenth of
    the time of a collector. Formats: https://prometheus.io/docs/instrumenting/exposition_formats/,
    https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[tuple[Series, ...], Places]] = {}
        self.unknown = 0
        """Series at the last scrape that are left out: their metric or labels are not in the catalogue."""

    def text(self, ranks: Sequence[ShownRank], gpus: Mapping[int, Sequence[str]], *, openmetrics: bool) -> str:
        """Return the lines of ``ranks``.

        Args:
            ranks: ranks in their order, each job and rank once.
            gpus: names of devices by process that uses them, for ranks that do not name theirs.
            openmetrics: whether the format is OpenMetrics, in which the name of a counter has no ending.
        """
        self.unknown = 0
        families: dict[str, list[str]] = defaultdict(list)
        places = {}
        for rank in ranks:
            identity = f'{{job="{label(rank.job)}",rank="{rank.rank}"'
            place = rank.job, rank.rank
            made = self._known.get(place)
            if made is None or made[0] is not rank.series:
                made = rank.series, _places(rank.series, identity)
            places[place] = made
            self.unknown += len(rank.series) - sum(map(len, made[1].values()))
            values = numbers(rank.values.tolist())
            for name, lines in made[1].items():
                families[name] += [begin + values[at] for begin, at in lines]
            _add_node(families, rank, identity, gpus.get(rank.pid_here, ()) if rank.pid_here else ())
        self._known = places
        metrics = [*METRICS.values(), RANK_INFO, RANK_UP, PHASE, SINCE, BUDGET]
        return "".join(
            _family_text(metric, families[metric.name], openmetrics) for metric in metrics if metric.name in families
        )


def label(text: str) -> str:
    """Return ``text`` as the value of a label in a line."""
    return short(text).replace("\\", r"\\").replace('"', r"\"")


def numbers(values: Iterable[float]) -> list[str]:
    """Return numbers as both formats have them."""
    texts = list(map(repr, values))
    return [_SPECIAL.get(text, text) for text in texts] if _SPECIAL.keys() & set(texts) else texts


_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}


def _places(series: Sequence[Series], identity: str) -> Places:
    """Return the beginnings of the lines of ``series``, in the order of the catalogue; a series that stands twice is
    taken once, and one that the catalogue does not have is left out."""
    beginnings: Places = defaultdict(list)
    seen = set[str]()
    for at, (name, labels) in enumerate(series):
        metric = METRICS.get(name) if isinstance(name, str) else None
        if metric is None or len(labels) != len(metric.labels) or not all(isinstance(text, str) for text in labels):
            continue
        more = "".join(f',{key}="{label(value)}"' for key, value in zip(metric.labels, labels, strict=True))
        begin = f"\n{name}{identity}{more}}} "
        if begin not in seen:
            seen.add(begin)
            beginnings[name].append((begin, at))
    return dict(sorted(beginnings.items(), key=lambda item: _ORDER[item[0]]))


def _add_node(families: dict[str, list[str]], rank: ShownRank, identity: str, gpus: Sequence[str]) -> None:
    """Add the series of a rank that the node makes."""
    facts = {"host": label(rank.host), "pid": str(rank.pid), "ranks": str(rank.ranks)}
    for uuid in dict.fromkeys(map(label, rank.gpu_uuids or gpus or ("",))):
        _add(families, RANK_INFO, identity, {**facts, "gpu_uuid": uuid}, 1)
    if rank.up is not None:
        _add(families, RANK_UP, identity, {}, int(rank.up))
    if rank.progress is not None:
        _add(families, PHASE, identity, {"phase": label(rank.progress.phase)}, 1)
        _add(families, SINCE, identity, {}, rank.progress.age)
        _add(families, BUDGET, identity, {}, rank.progress.budget)


def _add(families: dict[str, list[str]], metric: Metric, identity: str, more: Mapping[str, Any], value: float) -> None:
    labels = "".join(f',{name}="{text}"' for name, text in more.items())
    families[metric.name].append(f"\n{metric.name}{identity}{labels}}} {numbers([value])[0]}")


def _family_text(metric: Metric, lines: Sequence[str], openmetrics: bool) -> str:
    name = metric.name.removesuffix("_total") if openmetrics and metric.kind == "counter" else metric.name
    help_text = metric.about.replace("\\", r"\\")
    return f"# HELP {name} {help_text}\n# TYPE {name} {metric.kind}{''.join(lines)}\n"
