"""One of the processes of :class:`tests.mindspore.processes.MindSporeRanks`."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

import mindspore as ms

from tests.distributed.worker import serve


def join(pipe: Connection) -> None:
    """Join the group of all ranks, of which MindSpore's scheduler knows the address."""
    rank = os.environ.pop("RANK")
    for name in ("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"):  # torch's
        del os.environ[name]
    os.environ["MS_NODE_ID"] = rank
    if rank == "0":
        pipe.send(0)
    else:
        pipe.recv()
    ms.set_device("CPU")
    ms.communication.init()


if __name__ == "__main__":
    serve(join)
