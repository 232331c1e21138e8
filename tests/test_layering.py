"""Imports that are allowed: read from the sources, and watched in a fresh interpreter."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Set

import pytest

from probe.core.older_paths import OLDER_PATHS
from tests.sources import ROOT, imports_of, modules_of, sources_of

FRAMEWORKS = ("torch", "mindspore")
OPTIONAL = (
    *("tensorboardX", "tensorboard", "httpx", "httpcore", "apprise", "starlette", "uvicorn"),
    *("prometheus_client", "opentelemetry", "psutil", "pynvml", "re2", "ray"),
    *("wandb", "mlflow", "swanlab", "trackio", "mcp"),
)
ADAPTERS = ("probe.pytorch", "probe.mindspore")
RUNNING = ("probe.core.instrumentation", "probe.core.monitor")

FORBIDDEN: dict[str, tuple[str, ...]] = {
    "probe.core": (*FRAMEWORKS, *ADAPTERS, "probe.cli", "probe.services", "probe.view", "probe.agents"),
    "probe.services": (*FRAMEWORKS, *ADAPTERS, "probe.cli", "probe.view", "probe.agents"),
    "probe.view": (*FRAMEWORKS, *ADAPTERS, "probe.cli", "probe.agents"),
    "probe.agents": (*FRAMEWORKS, *ADAPTERS, "probe.cli", "probe.services"),
    "probe.launch": (*FRAMEWORKS, *ADAPTERS, "probe.cli", "probe.services", "probe.view", "probe.agents"),
    "probe.core.output.sinks": RUNNING,
    "probe.core.rules": RUNNING,
    "probe.pytorch": ("mindspore", "probe.mindspore", "probe.cli"),
    "probe.mindspore": ("torch", "probe.pytorch", "probe.cli"),
    "probe.demo.pytorch": ("mindspore", "probe.mindspore", "probe.demo.mindspore"),
    "probe.demo.mindspore": ("torch", "probe.pytorch", "probe.demo.pytorch"),
}
"""Packages that no module of a package may import, not even inside a function."""

ALLOWED: dict[str, tuple[str, ...]] = {
    "probe.core.records": ("numpy", "probe.core.moments"),
    "probe.core.moments": ("numpy", "probe.core.histogram", "probe.core.records"),
    "probe.core.histogram": ("numpy",),
}
"""All that a module may import besides the standard library."""

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"alerting.redaction", "language", "older_paths"}),
    frozenset({"errors"}),
    frozenset(
        {
            *("histogram", "robust", "door", "faults", "fields", "messages", "launch", "child_process"),
            *("times", "process_identity"),
        }
    ),
    frozenset({"worker", "http_client"}),
    frozenset({"moments", "hindsight"}),
    frozenset({"records"}),
    frozenset({"naming", "backend", "checks"}),
    frozenset({"storage", "prechecks"}),
    frozenset({"verdict"}),
    frozenset({"rules"}),
    frozenset({"verdict_picture"}),
    frozenset({"output.metrics"}),
    frozenset({"trackers"}),
    frozenset({"output.sinks", "alerting.channels", "run_state.rules"}),
    frozenset({"config", "judged_findings"}),
    frozenset({"distributed", "instrumentation"}),
    frozenset({"control", "run_state", "alerting"}),
    frozenset({"sentinel"}),
    frozenset({"output"}),
    frozenset({"monitor"}),
    frozenset({"transformers", "internevo", "monitor_v2"}),
    frozenset({"transformers_monitor", "monitor_manager", "alert"}),
)
"""The rooms of core, the lowest first: a module imports from its own room or from a lower layer."""
BESIDE = {"analysis": "config"}
"""Rooms that no layer imports, each with the highest layer that it imports."""
ANALYSIS = ("engines", "convert", "diagnosis", "performance", "pictures", "report", "compare")
"""Rooms of ``probe.core.analysis``, the lowest first."""

GRAMMAR = re.compile(
    r"\.(?:csv|parquet|db)\b(?!:)|_part_|\d\)-\(|manifest\.json|anomaly\.json|anomaly_detected|cost\.jsonl|checks\.jsonl|monitor_metrics"
    r"|tfevents|stack_info\.csv|^\*?-rank|superseded-| over ranks |metric_\S*_step_|_step_\S*_call_|%b%d_%H|%Y-%m-%dT"
)
"""Parts of the names of files, tables and entries, and of cells: written and parsed in ``probe.core.storage``."""
SPELLED_ELSEWHERE = {
    ("probe.core.faults", "manifest.json"): "a sentence for people, in the lowest layer",
    ("probe.core.analysis.diagnosis.export", "first_step"): "a field of an analysis, not of the manifest",
    ("probe.agents.tools", "first_step"): "a field of an answer, not of the manifest",
}
"""Modules outside ``probe.core.storage`` that spell some of it, with the reason."""

STARTS = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread", "run_sync", "to_thread"}
"""Functions that start a thread."""
THREADS = {
    "probe.core.worker": "the one class with a thread and a queue",
    "probe.core.analysis.engines.workers": "in a child process, whose parent's end it waits for to end it at once",
    "probe.core.distributed.address_store": "an event loop that serves connections until the process ends",
    "probe.core.storage.object_store": "a few requests side by side, which the caller waits for",
    "probe.services.remediation.workers": "several threads with one queue, never two for one target",
    "probe.services.server.app": "requests of many messages, beside the event loop that answers them",
    "probe.services.server.store": "what comes within a moment is one transaction, what is too much is refused",
    "probe.agents.server": "a call that reads files, beside the event loop that answers it",
    "probe.view.app": "a request that reads files, beside the event loop that answers it",
}
"""Modules that start threads, with the reason for which those of all but the first are no workers."""

SPELLED_ONCE = {
    "/proc/{pid}/stat": {"probe.core.process_identity"},
    "/proc/sys/kernel/random/boot_id": {"probe.core.process_identity"},
}
"""Files of the system that one module parses."""
ORGANS = {
    "uvicorn.Config": {"probe.services.web.serving"},
    "uvicorn.Server": {"probe.services.web.serving"},
    "stat.S_IROTH": {"probe.services.web.tokens"},
    "httpcore.ConnectionPool": {"probe.core.http_client"},
    "httpx.create_ssl_context": {"probe.core.http_client"},
    "hmac.compare_digest": {"probe.services.web.tokens", "probe.core.distributed.secret"},
    "rich.progress.Progress": {"probe.cli.progress_bar"},
}
"""Names of libraries that one module uses or imports; of two, one is for codes between ranks."""
SERVERS = {
    "probe.services.exporter.node_page", "probe.services.remediation.app", "probe.services.server.app", "probe.view.app"
}  # fmt: skip
"""Modules with the endpoints of a server."""

WATCHED_IMPORT = """
import importlib, json, sys

modules, watched, tried = json.loads(sys.argv[1]), set(json.loads(sys.argv[2])), []

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in watched:
            tried.append([name, module])

sys.meta_path.insert(0, Watch())
for module in modules:
    importlib.import_module(module)
print(json.dumps(tried))
"""


def within(imported: Iterable[str], packages: Iterable[str]) -> list[str]:
    """Those of ``imported`` that lie in one of ``packages``."""
    heads = tuple(f"{package}." for package in packages)
    return sorted(name for name in imported if f"{name}.".startswith(heads))


def tried_imports(modules: Iterable[str], watched: Iterable[str]) -> list[list[str]]:
    """Which of ``watched`` a fresh interpreter looks for while importing ``modules``, installed or not."""
    arguments = [json.dumps(list(modules)), json.dumps(list(watched))]
    run = subprocess.run(
        [sys.executable, "-c", WATCHED_IMPORT, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    tried: list[list[str]] = json.loads(run.stdout)
    return tried


def test_importing_probe_loads_nothing_heavy() -> None:
    """`import probe` looks for no framework, not even for NumPy, pydantic or the command line's packages."""
    assert tried_imports(["probe"], [*FRAMEWORKS, "numpy", "pydantic", "typer", "rich", "yaml"]) == []


def test_an_entry_point_is_named_with_its_modules() -> None:
    """`from probe import TrainerMon` is what newcomers write; those of callbacks are named with theirs."""
    program = "from probe import {name}"
    for name, text in (
        ("TrainerMon", "import it from probe.pytorch or probe.mindspore"),
        ("watch", "from probe.pytorch.callbacks"),
    ):
        command = [sys.executable, "-c", program.format(name=name)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert text in done.stderr


def test_importing_probe_takes_less_than_50_ms() -> None:
    """`import probe` costs a program that does not use it next to nothing."""
    timed = "import time; start = time.perf_counter(); import probe; print(time.perf_counter() - start)"
    seconds = (float(subprocess.check_output([sys.executable, "-c", timed], cwd=ROOT)) for _ in range(50))
    assert any(each < 0.050 for each in seconds)  # once: a busy machine takes its time


def test_core_loads_no_framework_and_no_optional_package() -> None:
    """Every module of core can be imported where no framework and no extra is installed."""
    modules = [*modules_of("probe.core"), *within(OLDER_PATHS, ["probe.core"])]
    assert {"probe.core", "probe.core.records", "probe.core.csv2db"} <= set(modules)
    assert tried_imports(modules, [*FRAMEWORKS, *OPTIONAL]) == []


def test_a_watched_import_is_noticed() -> None:
    """The watch that the tests here rely on sees what a module looks for."""
    assert tried_imports(["json.tool"], ["argparse"]) == [["argparse", "json.tool"]]


def test_the_command_line_imports_a_verb_only_to_run_it() -> None:
    """`probe --version` waits for no verb and none of what verbs need."""
    assert tried_imports(["probe.cli"], ["probe.cli.config", "probe.cli.demo", "probe.core", *FRAMEWORKS]) == []


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_package_imports_nothing_from_above_or_beside_it(package: str) -> None:
    """Imports point one way: sources to core, never core to frameworks, and no framework to another."""
    found = {name: within(source.imports, FORBIDDEN[package]) for name, source in sources_of(package).items()}
    assert {name: imported for name, imported in found.items() if imported} == {}


def core_imports() -> dict[str, set[str]]:
    """The modules of core that each module of core imports."""
    modules = sources_of("probe.core")
    return {name: (source.imports & modules.keys()) - {"probe.core"} for name, source in modules.items()}


def room(module: str) -> str:
    """The name below ``probe.core``, or that of a room within a room which has a layer of its own; empty for
    ``probe.core`` itself."""
    parts = module.removeprefix("probe.core").lstrip(".").split(".")
    inner = ".".join(parts[:2])
    return inner if any(inner in layer for layer in LAYERS) else parts[0]


def test_rooms_import_only_what_lies_below_them() -> None:
    """The floor plan: nothing imports from a room above or beside its own."""
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = []
    for name, imported in core_imports().items():
        here = room(name)
        highest = level[BESIDE[here]] if here in BESIDE else level.get(here, len(LAYERS)) - 1
        wrong += [
            (name, module)
            for module in sorted(imported)
            if room(module) != here and level.get(room(module), len(LAYERS)) > highest
        ]
    assert [pair for pair in wrong if pair[0] != "probe.core"] == []


def test_rooms_of_analysis_import_only_what_lies_below_them() -> None:
    """Engines stand below all, conversions and the diagnosis below the report, and the comparison above it."""
    wrong = []
    for name, imported in core_imports().items():
        here = name.removeprefix("probe.core.analysis.").split(".")[0]
        for module in imported:
            there = module.removeprefix("probe.core.analysis.").split(".")[0]
            if here in ANALYSIS and there in ANALYSIS and ANALYSIS.index(there) > ANALYSIS.index(here):
                wrong.append((name, module))
    assert wrong == []


def test_every_name_at_the_top_of_core_is_known() -> None:
    """The corridor stays short: a new room has a place in the layers."""
    there = {path.stem for path in (ROOT / "probe" / "core").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there - {"__pycache__"} <= {"__init__", *BESIDE, *frozenset[str]().union(*LAYERS)}


def test_no_class_name_stands_twice() -> None:
    """One word for one thing: public classes, the two frameworks' own for the same thing apart."""
    places: dict[str, list[str]] = {}
    for name, source in sources_of("probe").items():
        framework = next((part for part in name.split(".") if part in ("pytorch", "mindspore")), "")
        for kind in source.classes:
            places.setdefault(kind, []).append(framework or name)
    assert {
        name: where for name, where in places.items() if len(where) > 1 and sorted(where) != ["mindspore", "pytorch"]
    } == {}


def test_no_rule_is_named_outside_the_rules() -> None:
    """Statements of a rule that other rooms need are in its file."""
    from probe.core.rules import RULES

    named = [
        (name, text)
        for name, source in sources_of("probe").items()
        if not name.startswith("probe.core.rules")
        for text in source.texts
        if text in RULES
    ]
    assert named == []


def test_the_format_on_disk_has_one_home() -> None:
    """Names of files, columns and fields that no other word is like are spelled in the storage alone."""
    from probe.core.storage.layout import FORM, KEY, PP_STAGE
    from probe.core.storage.manifest import RunDescription

    fields = {name for name in (*KEY, *FORM, PP_STAGE, *RunDescription.__annotations__) if "_" in name}
    assert {"vpp_stage", "micro_step", "world_size", "start_time"} <= fields
    spelled = set()
    for name, source in sources_of("probe").items():
        if not within([name], ["probe.core.storage"]):
            spelled |= {(name, text) for text in source.texts if text in fields}
            spelled |= {(name, found[0]) for text in source.texts if (found := GRAMMAR.search(text))}
    assert spelled == set(SPELLED_ELSEWHERE)


def test_csv_is_parsed_by_two_readers_alone() -> None:
    """DuckDB, and the plain one with its parser of rows."""
    sources = sources_of("probe").items()
    plain = {name for name, source in sources if source.attributes & {"csv.reader", "csv.DictReader"}}
    assert plain == {"probe.core.storage.csv_rows", "probe.core.storage.csv_reader"}
    by_query = {name for name, source in sources if any("read_csv(" in text for text in source.texts)}
    assert by_query == {"probe.core.storage.listing"}


def test_no_script_of_a_page_spells_the_format_on_disk() -> None:
    """Scripts get names of files, lines and queries from the page's data."""
    scripts = sorted(path for path in (ROOT / "probe").rglob("*.js") if ".min." not in path.name)
    assert len(scripts) > 5
    found = {path.name: GRAMMAR.findall(path.read_text(encoding="utf-8")) for path in scripts}
    assert {name: spelled for name, spelled in found.items() if spelled} == {}


def test_threads_are_started_by_the_worker_alone() -> None:
    """Work beside training has one organ; any other thread of the package is listed with its reason."""
    starting = {name for name, source in sources_of("probe").items() if source.calls & STARTS}
    assert starting == set(THREADS)


def test_each_organ_is_in_one_module() -> None:
    """Servers are configured, and secrets read and compared, in one place, whatever needs it."""
    uses: dict[str, set[str]] = {organ: set() for organ in ORGANS}
    for name, source in sources_of("probe").items():
        for organ in (source.attributes | source.imports) & uses.keys():
            uses[organ].add(name)
    assert uses == ORGANS
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules_of("probe").items()}
    parsers = {file: {name for name, text in texts.items() if f'"{file}"' in text} for file in SPELLED_ONCE}
    assert parsers == SPELLED_ONCE
    assert not [name for name, text in texts.items() if '"/proc/self/stat"' in text]


def test_each_server_is_behind_the_one_gate() -> None:
    """Each application is made where it is put behind the gate; nothing else checks tokens, hosts or cookies."""
    calls = {name: source.calls for name, source in sources_of("probe").items()}
    assert {name for name, made in calls.items() if "Starlette" in made} == SERVERS
    assert {name for name, made in calls.items() if "Gate" in made} == SERVERS
    assert {name for name, made in calls.items() if "TokenCheck" in made} == {"probe.services.web.gate"}


def modules_among(imported: Set[str], modules: Iterable[str]) -> set[str]:
    """Those of ``imported`` that are ``modules``. A package counts if more than its modules is taken from it: to import
    one of these is to need that one."""
    found = imported.intersection(modules)
    taken = {name: {each for each in imported if each.rpartition(".")[0] == name} for name in found}
    return {name for name, names in taken.items() if not names or names - found}


def test_no_modules_import_each_other() -> None:
    """There is an order in which the whole package can be read."""
    modules = sources_of("probe")
    left = {name: modules_among(source.imports, modules) for name, source in modules.items()}
    while ready := [name for name, imported in left.items() if not (imported & left.keys()) - {name}]:
        for name in ready:
            del left[name]
    assert left == {}


def test_functions_of_other_modules_are_imported_by_name() -> None:
    """A reader who looks for a definition finds it: no module renames another one's functions by assignment."""
    renamed = [(name, source.renamed) for name, source in sources_of("probe").items() if source.renamed]
    assert renamed == []


def test_a_package_counts_where_names_are_taken_from_it() -> None:
    """A circle through a package is one only if the package itself is needed."""
    modules = {"a", "a.b", "a.c"}
    assert modules_among(imports_of(ast.parse("from a import b"), "a"), modules) == {"a.b"}
    assert modules_among(imports_of(ast.parse("from a import b, name"), "a"), modules) == {"a", "a.b"}
    assert modules_among(imports_of(ast.parse("from a.c import name"), "a"), modules) == {"a.c"}


def test_attaching_has_one_direction() -> None:
    """The script of a process names a module by a text: that one needs the request, not the command's folder of it."""
    names = [name for name in modules_of("probe.launch.attach") if name.endswith((".request", ".joining"))]
    assert len(names) == 2
    for name in names:
        imported = sources_of("probe.launch.attach")[name].imports
        assert within(imported, ["probe.launch.attach.exchange", "probe.launch.attach.injection"]) == []


@pytest.mark.parametrize("module", ALLOWED)
def test_the_records_know_only_numpy_and_each_other(module: str) -> None:
    """The records between the parts depend on none of them."""
    imported = sources_of("probe.core")[module].imports - {"__future__"}
    allowed = (*ALLOWED[module], *sys.stdlib_module_names)
    assert imported - set(within(imported, allowed)) == set()


def test_every_form_of_import_is_read() -> None:
    """Absolute, relative, nested and conditional imports all count."""
    source = """
import a.b as c
from d.e import f
from . import g
from ..h import i
if TYPE_CHECKING:
    import j
def late():
    from k import l
"""
    assert imports_of(ast.parse(source), "p.q") == {
        "a.b", "d.e", "d.e.f", "p.q", "p.q.g", "p.h", "p.h.i", "j", "k", "k.l"
    }  # fmt: skip
