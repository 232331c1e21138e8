"""Simulated nodes: files of ranks whose values change, and one process that serves a page for each node.

``python benchmarks/_exporter_nodes.py FOLDER NODES`` prints the port; the pages are at /node/NUMBER.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from probe.core.output.metrics.catalogue import LAST_STEP, NUMBERS, STEP, Series
from probe.core.output.metrics.mapped_file import SUFFIX, MetricsFile, MetricsHeader
from probe.core.process_identity import process_state
from probe.core.run_state.progress import Progress
from probe.services.exporter.json_numbers import JsonNumbers
from probe.services.exporter.node_page import NodePage
from probe.services.exporter.ranks import NodeRanks
from probe.services.web.listening import bound, raise_limit_of_files

RANKS = 8
SERIES = 200
BEATS = 10
"""Parts of a second at which some of the ranks end a step, so that all do so once a second."""


class SimulatedNode:
    """Ranks of one node, all with the id of this process."""

    def __init__(self, folder: Path, number: int, nodes: int) -> None:
        folder.mkdir()
        self.folder = folder
        pid = os.getpid()
        self._series = [
            *(Series(metric.name) for metric in (STEP, LAST_STEP, NUMBERS["loss"], NUMBERS["grad_norm"])),
            *(Series("probe_tensor_norm", ("grad_reduced", f"model.layers.{n}.mlp.weight")) for n in range(SERIES - 4)),
        ]
        self._files, self._marks = [], []
        for rank in range(number * RANKS, (number + 1) * RANKS):
            facts = MetricsHeader(pid, process_state(pid).started, "benchmark", rank, nodes * RANKS, f"node{number}")
            self._files.append(MetricsFile(folder / f"rank{rank}-{pid}{SUFFIX}", facts))
            self._marks.append(Progress(folder, rank, nodes * RANKS, "benchmark"))
        self._generator = np.random.default_rng(number)

    def step(self, step: int) -> None:
        """End a step on every rank."""
        for file, marks in zip(self._files, self._marks, strict=True):
            file.store(self._series, np.array([step, time.time(), *self._generator.lognormal(size=SERIES - 2)]))
            marks.step(step)

    def page(self) -> NodePage:
        """Page of this node."""
        return NodePage(NodeRanks(lambda: [self.folder]), JsonNumbers([]))


def main() -> None:
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    raise_limit_of_files(4 * number * RANKS + 1024)
    nodes = [SimulatedNode(folder / str(n), n, number) for n in range(number)]
    for node in nodes:
        node.step(0)
    pages = [node.page() for node in nodes]

    async def metrics(request: Request) -> Response:
        content, kind = await pages[request.path_params["number"]].text(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": kind})

    async def train() -> None:
        for beat in range(10**9):
            for node in nodes[beat % BEATS :: BEATS]:
                node.step(beat // BEATS)
            await asyncio.sleep(1 / BEATS)

    async def serve() -> None:
        app = Starlette(routes=[Route("/node/{number:int}", metrics)])
        with bound("127.0.0.1", 0) as listening:
            server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))
            training = asyncio.ensure_future(train())
            print(listening.getsockname()[1], flush=True)
            await server.serve(sockets=[listening])
            training.cancel()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
