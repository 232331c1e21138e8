"""Runs in object storage, on real servers: the same answers as on a disk, few requests, and every trouble named."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.diagnosis.analyse import analyse
from probe.core.analysis.diagnosis.export import as_json
from probe.core.records import Update
from probe.core.storage import object_store
from probe.core.storage.directories import last_run
from probe.core.storage.duckdb_reader import Rows, connect
from probe.core.storage.fetched_parts import FetchedParts
from probe.core.storage.layout import COSTS, cost_line
from probe.core.storage.location import Location, Place, located, readable_by_duckdb
from probe.core.storage.object_store import LocationError
from probe.core.storage.packed.pack import pack
from probe.core.storage.problems import Problems
from tests.core.storage.run_files import write_run
from tests.faulty_proxy import FaultyProxy, ProxiedRequest, Trouble
from tests.object_storage import BUCKET, SECRET, ObjectServer, environment, moto, seaweed, storage
from tests.packed_text import PACKED, unpacked_text
from tests.quick_python import quick_python
from tests.required import require
from tests.simulated_run import ParallelSizes, SimulatedRun
from tests.user_scripts import COMMANDS
from tests.waiting import free_port

require("duckdb")

__all__ = ["seaweed", "storage"]  # fixtures

SIMULATED = SimulatedRun(ParallelSizes(dp=2, pp=2), "gradient", seed=1, rows=8, resumed=0.3, dead=0.3)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with every kind of file: three formats, names with special characters, damaged lines and files."""
    root = tmp_path / "run"
    csv = write_run(root, 0, range(4))
    parquet = write_run(root, 1, range(4), sink="parquet")
    write_run(root, 2, range(4), sink="sqlite")
    (csv / "a%2541%5B1%5D%3F%2A#_0-1.csv").write_text("vpp_stage,name,step,norm\n0,fc,0,1\n0,fc,1,nan\n")
    (csv / "b[1]*_0-1.csv").write_text("vpp_stage,name,step,norm\n0,fc,0,1\n0,fc,x,2\n0,fc,1,2\n0,fc")
    (csv / "c_0-1.csv").write_bytes(b"")
    (parquet / "d_0-1.parquet").write_bytes(b"PAR1 is how it begins")
    return root


@pytest.fixture
def seaweed_variables(seaweed: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """The variables by which this process finds SeaweedFS."""
    return with_variables(seaweed.environment, seaweed, monkeypatch)


def with_variables(variables: dict[str, str], server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return server


def everything(place: Place, problems: Problems) -> dict[str, list[tuple[object, ...]]]:
    """All rows of the last run, by signal."""
    with Rows(last_run(place, problems).directories, problems) as rows:
        return {
            signal: rows.connection.execute(f"SELECT * FROM {rows.view(signal)} ORDER BY ALL").fetchall()
            for signal in rows.signals
        }


def told(problems: Problems, root: object) -> list[str]:
    """Problems, with the places within the run alone."""
    return [line.replace(str(root), "RUN") for line in problems.lines()]


def test_rows_and_problems_are_those_of_a_folder(
    storage: ObjectServer, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every format, with NaN, damaged lines and files, and names that contain patterns and escapes."""
    with_variables(storage.environment, storage, monkeypatch)
    url = storage.put(run, "all of%20it [1]*?/run")
    here, there = Problems(), Problems()
    assert repr(everything(located(url), there)) == repr(everything(run, here))
    assert told(there, url) == told(here, run)
    assert len(told(here, run)) > 3


def answer(words: list[str], root: object) -> tuple[int, str]:
    """Exit code and output of a command, with the places within the run alone."""
    done = CliRunner().invoke(app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, (done.stdout + done.stderr).replace(str(root), "RUN")


def inflated(page: str) -> str:
    """A report with the texts of its compressed parts, in which the run is named too."""
    page = re.sub(r'<script[^>]* id="cells">.*?</script>', "", page, flags=re.DOTALL)  # has ties
    return PACKED.sub(lambda packed: unpacked_text(packed[0]).decode("utf-8", "replace"), page)


@pytest.mark.parametrize("packed", [False, True])
def test_commands_answer_with_the_same_bytes(packed: bool, seaweed_variables: ObjectServer, tmp_path: Path) -> None:
    """``anomalies``, ``report`` and ``compare`` of a bucket, packed or not, and of a folder."""
    plain = tmp_path / "plain"
    SIMULATED.write(plain)
    folder = plain
    if packed:
        folder = tmp_path / "packed"
        pack(plain, folder)
    other = shutil.copytree(plain, tmp_path / "other")
    url = seaweed_variables.put(folder, f"commands{packed}/{folder.name}")  # a page has the name of its folder
    out = tmp_path / "page.html"
    pages = []
    for root in (str(folder), url):
        code, said = answer(["anomalies", root, "--json"], root)
        shown = answer(["report", root, "-o", str(out)], root)
        page = inflated(out.read_text()).replace(root, "RUN")
        assert code == 1, said
        compared = None if packed else answer(["compare", root, str(other)], root)
        pages.append((code, said, shown, page, compared))
    for here, there in zip(*pages, strict=True):
        assert here == there


@pytest.mark.parametrize("packed", [False, True])
def test_a_run_is_not_mixed_with_its_neighbour(packed: bool, seaweed_variables: ObjectServer, tmp_path: Path) -> None:
    """Two runs in one bucket, the name of one the beginning of the other's: each has its own rows and ranks alone."""
    found = []
    for name, ranks in (("both", 2), ("both-2", 3)):
        folder = tmp_path / name
        for rank in range(ranks):
            write_run(folder, rank, range(ranks + 1))
        if packed:
            pack(folder, tmp_path / f"packed-{name}")
            folder = tmp_path / f"packed-{name}"
        url = seaweed_variables.put(folder, f"neighbours{packed}/{name}")
        found.append((url, everything(folder, Problems()), ranks))
    for url, expected, ranks in found:
        problems = Problems()
        assert everything(located(url), problems) == expected
        assert last_run(located(url), problems).ranks == tuple(range(ranks))
        assert told(problems, url) == []


def test_conversions_write_the_same(seaweed_variables: ObjectServer, run: Path, tmp_path: Path) -> None:
    """By one process, and by two but for the order of the problems: the curves are equal byte by byte if the files are
    of the same time, the rows of the database also otherwise."""
    url = seaweed_variables.put(run, "conversions")
    with_times_of(located(url), run)
    found = []
    for root, processes in ((str(run), "1"), (url, "1"), (url, "2")):
        out = tmp_path / f"of{len(found)}"
        code, said = answer(["csv2db", root, "-o", str(out), "-j", processes], root)
        curves = answer(["csv2tb", root, "-o", str(out / "curves"), "-j", processes], root)
        with closing(sqlite3.connect(out / "monitor_metrics.db")) as database:
            dump = list(database.iterdump())
        events = [path.read_bytes() for path in sorted((out / "curves").rglob("events*"))]
        assert events
        lines = [text.replace(str(out), "OUT").splitlines() for text in (said, curves[1])]
        found.append([code, curves[0], dump, events, *lines])
    assert found[0] == found[1]
    assert [*found[1][:4], *map(sorted, found[1][4:])] == [*found[2][:4], *map(sorted, found[2][4:])]


def with_times_of(place: Place, folder: Path) -> None:
    """Give the files in ``folder`` the times of the objects of the same names."""
    for path in folder.rglob("*"):
        if path.is_file():
            assert isinstance(place, Location)
            time = (place / str(path.relative_to(folder))).stat().st_mtime_ns
            os.utime(path, ns=(time, time))


def test_each_object_is_read_once_after_one_listing(
    seaweed: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first cause and all rows of a run: one listing, one request an object, none for what is not there."""
    SIMULATED.write(tmp_path)
    url = seaweed.put(tmp_path, "counted")
    with FaultyProxy(seaweed.url) as proxy:
        with_variables(environment(proxy.url), seaweed, monkeypatch)
        place = located(url)
        analyse(place)
        everything(place, Problems())
    assert len(proxy.listings()) == 1
    assert set(proxy.of_objects().values()) == {1}
    assert len(proxy.of_objects()) <= sum(path.is_file() for path in tmp_path.rglob("*"))


def write_costs(run: Path) -> None:
    """Write the costs and updates of two steps into each directory of a run."""
    update = Update("applied", 0, True, 0.1)
    lines = "".join(cost_line(step, {"hooks": 0.1, "drain": 0.1, "device": 0.1}, 0.01, update) for step in (0, 1))
    for directory in run.glob("*-rank*"):
        (directory / COSTS).write_text(lines, encoding="utf-8")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="copies are shared on Linux alone")
def test_several_processes_fetch_an_object_once(
    seaweed: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report, in several passes by two processes: one request an object, by whichever process."""
    run = tmp_path / "run"
    SIMULATED.write(run)
    write_costs(run)
    url = seaweed.put(run, "processes")
    with FaultyProxy(seaweed.url) as proxy:
        with_variables(environment(proxy.url), seaweed, monkeypatch)
        code, said = answer(["report", url, "-o", str(tmp_path / "page.html"), "-j", "2"], url)
    assert code == 0, said
    assert set(proxy.of_objects().values()) == {1}
    assert [request.path for request in proxy.requests if request.method == "HEAD"] == []


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small objects are taken for large ones."""
    monkeypatch.setattr(object_store, "SIZES", object_store.PartSizes(whole=1000, tail=300))


@pytest.mark.usefixtures("in_parts")
def test_a_large_object_takes_three_requests(seaweed: ObjectServer, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end, and its other bytes in two parts, whatever is read of it and how often."""
    url = seaweed.put(run, "large")
    with FaultyProxy(seaweed.url) as proxy:
        with_variables(environment(proxy.url), seaweed, monkeypatch)
        place = located(url)
        assert repr(everything(place, Problems())) == repr(everything(run, Problems()))
        everything(place, Problems())
    assert max(proxy.of_objects().values()) == 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="copies are shared on Linux alone")
@pytest.mark.usefixtures("in_parts")
def test_the_report_of_a_packed_run_takes_three_requests_an_object(
    seaweed: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By two processes, of files that are each read in parts: one listing, and no request for an object's size."""
    SIMULATED.write(tmp_path / "run")
    write_costs(tmp_path / "run")
    pack(tmp_path / "run", tmp_path / "packed", block_bytes=20_000)
    url = seaweed.put(tmp_path / "packed", "parts")
    with FaultyProxy(seaweed.url) as proxy:
        with_variables(environment(proxy.url), seaweed, monkeypatch)
        code, said = answer(["report", url, "-o", str(tmp_path / "page.html"), "-j", "2"], url)
    assert code == 0, said
    requests = proxy.of_objects()
    assert len(requests) > 4
    assert max(requests.values()) == 3, requests
    assert [request.path for request in proxy.requests if request.method == "HEAD"] == []
    assert len(proxy.listings()) == 1


def test_threads_read_an_object_at_the_same_time(tmp_path: Path) -> None:
    """DuckDB's threads share an open object, and seek and read in turns: each reads what it asked for."""
    fsspec = require("fsspec")
    written = tmp_path / "rows.parquet"
    with closing(connect(threads=4)) as connection:
        rows = "SELECT range AS n, hash(range) AS h FROM range(300_000)"
        connection.execute(f"COPY ({rows}) TO '{written}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
        fsspec.filesystem("memory").pipe("/threads/rows.parquet", written.read_bytes())
        place = located("memory://threads") / "rows.parquet"
        readable_by_duckdb(connection, place)
        query = "SELECT count(*), sum(n), bit_xor(h) FROM read_parquet('{}')"
        expected = connection.execute(query.format(written)).fetchall()
        for _ in range(20):
            assert connection.execute(query.format(place)).fetchall() == expected


def test_a_position_holds_for_its_own_thread() -> None:
    """Of an object that DuckDB has open; a reading without one goes on after the last."""
    data = bytes(range(100))
    require("fsspec").filesystem("memory").pipe("/positions/object", data)
    from probe.core.storage.duckdb_files import DuckdbFiles

    place = located("memory://positions")
    assert isinstance(place, Location)
    file = DuckdbFiles("memory", lambda _: place / "object").open("memory://positions/object")
    assert file.seek(10) == 10
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: (file.seek(-5, 2), file.tell(), file.read(3))).result() == (95, 95, data[95:98])
        assert file.tell() == 10
        assert file.read(4) == data[10:14]
        assert other.submit(file.read, 2).result() == data[14:16]
    assert file.read() == data[16:]
    assert (file.read(1), file.tell()) == (b"", 100)


@pytest.mark.usefixtures("in_parts")
def test_an_object_that_changes_between_two_parts_is_an_error(
    storage: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never the beginning of one version with the end of another."""
    with_variables(storage.environment, storage, monkeypatch)
    (tmp_path / "file").write_bytes(b"1" * 5000)
    url = storage.put(tmp_path, "changing")
    place = located(url) / "file"
    with place.open() as file:
        assert file.read(10) == b"1" * 10
        storage.client().put_object(Bucket=BUCKET, Key="changing/file", Body=b"2" * 5000)
        file.seek(4000)
        with pytest.raises(LocationError, match="has changed since it was listed"):
            file.read()


def test_what_changes_or_vanishes_is_a_problem(
    storage: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object of another size or version, or none, after the listing: left out by name, and the exit code is 1."""
    with_variables(storage.environment, storage, monkeypatch)
    directory = write_run(tmp_path, 0, range(4))
    url = storage.put(tmp_path, "vanishing")
    place, problems = located(url), Problems()
    assert place.is_dir()
    names = sorted(path.name for path in directory.glob("actv*.csv"))
    key = f"vanishing/{directory.name}"
    storage.client().delete_object(Bucket=BUCKET, Key=f"{key}/{names[0]}")
    content = (directory / names[1]).read_bytes()
    storage.client().put_object(Bucket=BUCKET, Key=f"{key}/{names[1]}", Body=content + content)
    storage.client().put_object(Bucket=BUCKET, Key=f"{key}/{names[2]}", Body=content[:-2] + b"9\n")
    rows = everything(place, problems)
    assert {row[4] for row in rows["actv"]} == {3}
    assert problems.skipped
    lines = "\n".join(problems.lines())
    assert f"{names[0]}: " in lines
    assert "it is gone now" in lines
    assert lines.count("has changed since it was listed") == 2


def busy(request: ProxiedRequest) -> Trouble | None:
    """Trouble: the first two requests of an object, and of every listing, are answered with 503."""
    hit = request.is_listing or ("/actv_1-" in request.path and request.path.endswith(".csv"))
    return Trouble(status=503) if hit and request.number <= 2 else None


def cut(request: ProxiedRequest) -> Trouble | None:
    """Trouble: the first answer of each object breaks off."""
    return Trouble(cut_after=20) if request.number == 1 and not request.is_listing else None


@pytest.mark.parametrize("faults", [busy, cut], ids=["busy", "cut"])
def test_passing_trouble_changes_nothing(
    faults: Callable[[ProxiedRequest], Trouble | None],
    seaweed: ObjectServer,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """503 and answers that break off are asked for again."""
    url = seaweed.put(run, "passing")
    with FaultyProxy(seaweed.url, faults) as proxy:
        with_variables(environment(proxy.url), seaweed, monkeypatch)
        problems, here = Problems(), Problems()
        assert repr(everything(located(url), problems)) == repr(everything(run, here))
        assert told(problems, url) == told(here, run)


def test_an_object_that_is_always_refused_is_a_problem(
    seaweed: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 to every attempt, of which there are as many as the variable allows: the file is named with what came and
    what to do, and the rest is read."""
    directory = write_run(tmp_path, 0, range(2))
    url = seaweed.put(tmp_path, "refused")
    name = f"{directory.name}/actv_0-0.csv"
    with FaultyProxy(seaweed.url, lambda r: Trouble(status=503) if r.path.endswith(name) else None) as proxy:
        with_variables(environment(proxy.url) | {"AWS_MAX_ATTEMPTS": "3"}, seaweed, monkeypatch)
        code, said = answer(["anomalies", url], url)
    assert code == 1
    assert "actv_0-0.csv" in said.replace("\n", "")
    assert "the storage is busy, after several attempts" in said
    assert proxy.of_objects()[f"/{BUCKET}/refused/{name}"] == 3


@pytest.mark.parametrize(
    ("variables", "mode", "attempts"),
    [
        ({}, "standard", 5),
        ({"AWS_MAX_ATTEMPTS": "2"}, "standard", 2),
        ({"AWS_RETRY_MODE": "adaptive"}, "adaptive", None),
        ({"AWS_CONFIG_FILE": "FILE"}, "legacy", 9),
    ],
)
def test_one_layer_repeats_requests(
    variables: dict[str, str], mode: str, attempts: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore, in a mode with bounded attempts unless the user's variables or files choose another; s3fs repeats none
    of its attempts once more."""
    require("s3fs")
    for name in ("AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config"
    path.write_text("[default]\nretry_mode = legacy\nmax_attempts = 9\n")
    for name, value in (environment("http://127.0.0.1:9") | variables).items():
        monkeypatch.setenv(name, value.replace("FILE", str(path)))
    files = object_store.new_store(f"s3://{BUCKET}/run").fs
    chosen = files.s3.meta.config.retries
    assert (files.retries, chosen["mode"], chosen.get("total_max_attempts")) == (1, mode, attempts)


@pytest.mark.usefixtures("in_parts")
def test_trouble_within_a_query_is_an_error_that_names_the_object(
    seaweed: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB, which reads the later parts of a large object, does not hide what happened."""
    directory = write_run(tmp_path, 0, range(2), sink="parquet")
    url = seaweed.put(tmp_path, "query")
    name = sorted(path.name for path in directory.glob("actv*"))[0]
    with_variables(seaweed.environment, seaweed, monkeypatch)
    problems = Problems()
    run = last_run(located(url), problems)

    def asked() -> None:
        with Rows(run.directories, problems) as rows:
            view = rows.view("actv")
            key = f"query/{directory.name}/{name}"
            seaweed.client().put_object(Bucket=BUCKET, Key=key, Body=(directory / name).read_bytes() + b" ")
            store = next(file.path for _, file in rows.files["actv"]).store
            monkeypatch.setattr(store, "_fetched", FetchedParts())  # as if DuckDB had not read this part before
            rows.connection.execute(f"SELECT sum(min) FROM {view}").fetchall()

    with pytest.raises(LocationError, match=f"{name}: it has changed since it was listed"):
        asked()


@pytest.fixture
def wrong(seaweed: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run, and keys that the server does not know."""
    write_run(tmp_path, 0, range(2))
    url = seaweed.put(tmp_path, "wrong")
    with_variables(seaweed.environment | {"AWS_SECRET_ACCESS_KEY": "another-secret"}, seaweed, monkeypatch)
    return url


@pytest.mark.parametrize("command", ["anomalies", "report", "compare", "csv2db", "csv2tb", "performance"])
def test_wrong_keys_are_refused(command: str, wrong: str, tmp_path: Path) -> None:
    """Each command says where, what came and what to do, ends with 2 and shows no key."""
    second = [wrong] if command == "compare" else ["-o", str(tmp_path / "out")] if command != "anomalies" else []
    code, said = answer([command, wrong, *second], tmp_path)
    flat = " ".join(said.split())
    assert code == 2
    assert f"{wrong}: expected a folder that can be listed; PermissionError" in flat
    assert "check the credentials" in flat
    assert "another-secret" not in flat


def test_a_bucket_or_folder_that_is_not_there(seaweed_variables: ObjectServer, tmp_path: Path) -> None:
    """Both are named, with exit code 2."""
    for url in ("s3://no-such-bucket/run", f"s3://{BUCKET}/nothing"):
        code, said = answer(["anomalies", url], tmp_path)
        assert code == 2
        assert f"{url}: expected the directory in which ranks have written; there is none of this name" in said


def test_a_server_that_is_not_there(seaweed: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is named, and what to check."""
    with_variables(environment("http://127.0.0.1:9") | {"AWS_MAX_ATTEMPTS": "2"}, seaweed, monkeypatch)
    code, said = answer(["anomalies", f"s3://{BUCKET}/run"], tmp_path)
    assert code == 2
    assert "Could not connect" in said
    assert "check the endpoint" in said


def test_a_server_that_is_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was listed before is read after it, once the server is there again with the same objects."""
    require("s3fs")
    run = tmp_path / "run"
    write_run(run, 0, range(3))
    port = free_port()
    with moto(tmp_path / "moto", port) as first:
        with_variables(first.environment, first, monkeypatch)
        place = located(first.put(run, "restarted"))
        assert place.is_dir()
    with moto(tmp_path / "moto", port) as second:
        second.put(run, "restarted")
        assert repr(everything(place, Problems())) == repr(everything(run, Problems()))


def test_a_url_with_a_password_is_refused_without_showing_it(tmp_path: Path) -> None:
    """It would be in reports and shell histories."""
    code, said = answer(["anomalies", "s3://key:pass-word@bucket/run"], tmp_path)
    assert code == 2
    assert "pass-word" not in said
    assert "credentials" in said
    with pytest.raises(ValueError, match="expected a URL without credentials"):
        located("s3://key:pass-word@bucket/run")


def test_a_pickle_is_small_and_has_no_credentials(seaweed_variables: ObjectServer, run: Path) -> None:
    """A location as a worker gets it: readable there, without listing again."""
    url = seaweed_variables.put(run, "pickled")
    place = next(path for path in next(iter(located(url).iterdir())).iterdir() if path.suffix == ".csv")
    data = pickle.dumps(place)
    assert len(data) < 500
    assert SECRET.encode() not in data
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_read, (data,)) == place.read_bytes()


def _read(data: bytes) -> bytes:
    place: Location = pickle.loads(data)
    return place.read_bytes()


def test_without_the_package_the_error_names_what_to_install(run: Path, tmp_path: Path) -> None:
    """``import probe`` and the readers need none of it; a URL does."""
    code = (
        "import sys; sys.modules['s3fs'] = None; sys.argv = ['probe', 'anomalies', 's3://bucket/run']\n"
        "from probe.cli import main; main()"
    )
    done = subprocess.run([quick_python(*COMMANDS), "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install" in done.stderr
    assert "s3fs" in done.stderr
    assert "[s3]" in done.stderr


def test_memory_and_its_names() -> None:
    """The part of :class:`pathlib.Path` that readers use, on fsspec's own file system."""
    fsspec = require("fsspec")
    fsspec.filesystem("memory").pipe({"/names/run/a[1].csv": b"1\r\n2", "/names/run/b/c%41.json": b"{}"})
    root = located("memory://names/run/")
    assert isinstance(root, Location)
    assert (str(root), root.name, root.parts) == ("memory://names/run", "run", ("memory://names", "run"))
    assert [path.name for path in root.iterdir()] == ["a[1].csv", "b"]
    assert [path.name for path in root.glob("a*")] == ["a[1].csv"]
    file = root / "b" / "c%41.json"
    assert (file.suffix, file.stem, str(file.parent), file.is_file(), file.is_dir()) == (
        ".json",
        "c%41",
        "memory://names/run/b",
        True,
        False,
    )
    assert (root / "a[1].csv").read_text() == "1\n2"
    assert str(file.relative_to(root)) == "b/c%41.json"
    assert not (root / "b" / "d").exists()
    assert file.with_name("x") == root / "b" / "x"
    assert sorted([file, root]) == [root, file]
    with pytest.raises(FileNotFoundError):
        (root / "d").stat()
    with pytest.raises(IsADirectoryError):
        (root / "b").open()


@pytest.mark.parametrize("text", ["file:///tmp/run", "s3://", "ftp://host/run", "s4://bucket/run"])
def test_other_urls_are_refused(text: str) -> None:
    """With the kinds that there are, or an example."""
    with pytest.raises(ValueError, match="s3://"):
        located(text)


def test_the_first_cause_is_the_same_over_memory(tmp_path: Path) -> None:
    """Any file system of fsspec serves."""
    fsspec = require("fsspec")
    SIMULATED.write(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            fsspec.filesystem("memory").pipe(f"/cause/{path.relative_to(tmp_path)}", path.read_bytes())
    there = json.dumps(as_json(analyse(located("memory://cause"))))
    assert there.replace("memory://cause", "RUN") == json.dumps(as_json(analyse(tmp_path))).replace(
        str(tmp_path), "RUN"
    )
