"""One of the processes of :class:`tests.distributed.ranks.Ranks`: waits for calls, and answers."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import reduce
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

COLLECTIVE_SECONDS = 60
"""After which a collective that waits for another rank raises."""


def join(pipe: Connection) -> None:
    """Join the process group of all ranks; rank 0 sends the others, through the test, the address."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=COLLECTIVE_SECONDS)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
        pipe.send(store.port)
    else:
        store = dist.TCPStore("127.0.0.1", pipe.recv(), size, timeout=timeout)
    os.environ["MASTER_PORT"] = str(store.port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)


def answer(call: bytes) -> tuple[str, Any]:
    """Calls what is asked for."""
    module, name, args, kwargs, directory = pickle.loads(call)
    os.environ["MONITOR_OUTPUT_DIR"] = directory
    try:
        return "returned", reduce(getattr, name.split("."), import_module(module))(*args, **kwargs)  # type: ignore[operator]
    except BaseException:  # noqa: BLE001 - told to the test
        return "raised", traceback.format_exc()


def serve(join: Callable[[Connection], None]) -> None:
    """Answers calls until there are no more."""
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    faulthandler.enable()  # the test ends what hangs by a signal that prints where
    pipe = Connection(int(sys.argv[1]))
    join(pipe)
    with suppress(EOFError):
        while True:
            pipe.send_bytes(pickle.dumps(answer(pipe.recv_bytes())))
            gc.collect()


if __name__ == "__main__":
    serve(join)
    os._exit(0)  # nothing to tidy up, and a process group may wait for ranks that are gone
