"""Process of the page: socket, token, cache, signals."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from probe.core.errors import needed
from probe.core.language import invalid, message
from probe.core.storage.files import confine
from probe.core.storage.location import MARK, located
from probe.services.web.listening import bound, is_local_name, is_loopback, is_own_name

END_SECONDS = 3
"""Longest time in seconds for requests that are under way at the end."""
NICE = 10
"""Priority beside training on the same machine."""
MOST_CACHE = 2 << 30
"""Bytes of the cache beyond which the levels that were used longest ago are removed."""


class ViewOptions(NamedTuple):
    """Options of the page."""

    places: tuple[str, ...]
    """Folders with runs, or URLs."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: any that is free."""


def view_until_ended(options: ViewOptions, started: Callable[[str], None]) -> None:
    """Serve the page until SIGTERM or SIGINT; ``started`` gets its address, with the token.

    Raises:
        ServerError: if it cannot start.
        ImportError: if a package is missing.
        ValueError: if a place cannot be used.
    """
    with needed("probe view", "services", {"duckdb": "analysis"}):
        import duckdb  # noqa: F401 - found missing before anything is opened

        from probe.services.web.serving import ServingLimits, WebServer
        from probe.view.app import ViewEndpoints, application
        from probe.view.events import ChangeLog
        from probe.view.run_list import RunList
    places = checked(options.places)
    with ExitStack() as stack:
        listening = stack.enter_context(bound(options.host, options.port))
        with suppress(OSError):
            os.nice(NICE)
        cache = cache_folder(os.environ)
        trim(cache, MOST_CACHE)
        log = ChangeLog()
        folders = [place for place in places if MARK not in place]
        confine(map(Path, folders))
        runs = RunList(places, cache, log.changed, folders)
        stack.callback(runs.close)
        runs.start()
        endpoints, token = ViewEndpoints(runs, log), secrets.token_urlsafe(32)
        cookie = f"probe-view-{listening.getsockname()[1]}"
        is_host = is_local_name if is_loopback(options.host) else is_own_name
        gate = application(endpoints, token, cookie, is_host)
        server = WebServer(gate, listening, ServingLimits(end_seconds=END_SECONDS))
        endpoints.is_ending = lambda: server.is_ending
        server.run(lambda: started(f"{server.address}/?token={token}"))


def checked(places: Sequence[str]) -> list[str]:
    """Return the places as they are read.

    Raises:
        ValueError: if one of them is no folder.
    """
    found = []
    for text in places:
        place = located(text).expanduser().absolute()
        if isinstance(place, Path) and not place.is_dir():
            what = message("this is a file" if place.exists() else "there is none of this name")
            raise invalid(
                "{place}: expected a folder with runs, such as MONITOR_OUTPUT_DIR of one; {what}: give that of a "
                "run, or one with runs in it",
                place=place,
                what=what,
            )
        found.append(str(place))
    return list(dict.fromkeys(found))


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user's cache that levels are kept in."""
    base = environ.get("XDG_CACHE_HOME") or ""
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "probe" / "view"


def trim(cache: Path, most: int) -> None:
    """Remove the folders of the runs that were looked at longest ago, until the cache has at most ``most`` bytes."""
    sizes = []
    with suppress(OSError):
        for folder in cache.iterdir():
            with suppress(OSError):
                files = [path.stat() for path in folder.iterdir()]
                sizes.append((max((f.st_mtime for f in files), default=0.0), sum(f.st_size for f in files), folder))
    total = sum(size for _, size, _ in sizes)
    for used, size, folder in sorted(sizes):
        if total <= most or time.time() - used < 60:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= size
