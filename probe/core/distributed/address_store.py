"""Store that the first rank keeps at an address, for frameworks without a store and for jobs whose own must not be
used.

It listens at this address and nowhere else. A connection begins with a proof from both sides that they know the secret;
after it, every frame carries a code under a key of that connection and the frame's number, so that others can neither
send, alter nor repeat a frame. Payloads are JSON; nothing is unpickled.

Values are sent to every connection at once. So a rank looks for new ones without a request, and the first rank's
processor has nothing to do while there are none.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import socket
import threading
from contextlib import suppress

from probe.core.distributed.secret import MAC, code, same
from probe.core.faults import Faults

NONCE = 32
"""Random bytes that each side chooses for each connection."""
MOST_BYTES = 16 << 20
"""Largest size of a frame in bytes."""
STRANGERS = 64
"""Most connections that may be open at a time without a proof."""
PROOF_SECONDS = 5.0
"""Time in which a connection has to prove that it knows the secret."""
ANSWER_SECONDS = 10.0
"""Time after which a rank gives up the store."""
REFUSED, ADMITTED = b"\0", b"\1"

Address = tuple[str, int]
"""Host and port."""


def _proof(secret: bytes, who: bytes, server: bytes, client: bytes) -> bytes:
    return code(secret, b"probe store", who, server, client)


class _Frames:
    """Maker and checker of the frames of one direction of a connection."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._key, self._direction, self._number = key, direction, 0

    def _next(self, payload: bytes) -> bytes:
        self._number += 1
        return code(self._key, self._direction, self._number.to_bytes(8, "big"), payload)

    def packed(self, key: str, value: bytes) -> bytes:
        """Pack a frame, with its length before it."""
        payload = json.dumps([key, value.decode()]).encode()
        return len(payload).to_bytes(4, "big") + self._next(payload) + payload

    def unpacked(self, mac: bytes, payload: bytes) -> tuple[str, bytes]:
        """Check and unpack a frame.

        Raises:
            PermissionError: if it was not made by the other side.
        """
        if not same(mac, self._next(payload)):
            raise PermissionError("a frame was altered on its way")
        key, value = json.loads(payload)
        return str(key), str(value).encode()


def _length(head: bytes) -> int:
    length = int.from_bytes(head, "big")
    if length > MOST_BYTES:
        raise PermissionError(f"a frame of {length} bytes is longer than {MOST_BYTES}")
    return length


class Server:
    """Server that keeps values by name, on a thread, until the process ends: another run of this process may use it.

    Args:
        faults: counter of connections that were refused.

    Raises:
        OSError: if it cannot listen at ``address``.
    """

    def __init__(self, address: Address, secret: bytes, faults: Faults) -> None:
        self.secret, self.faults = secret, faults
        self._kept: dict[str, bytes] = {}
        self._members: dict[asyncio.StreamWriter, _Frames] = {}
        self._strangers = 0
        self._socket = _listening(address)
        threading.Thread(target=lambda: asyncio.run(self._serve()), name="probe-store", daemon=True).start()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket)
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._strangers < STRANGERS and (key := await self._admit(reader, writer)) is not None:
                await self._listen(reader, writer, key)
        except (OSError, ValueError, TypeError, asyncio.IncompleteReadError) as error:
            if isinstance(error, PermissionError):
                self.faults.note("broadcast", error)
        finally:
            self._members.pop(writer, None)
            writer.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """Admit the other side if it knows the secret; return the key of the connection."""
        server = os.urandom(NONCE)
        writer.write(server)
        self._strangers += 1
        try:
            answer = await asyncio.wait_for(reader.readexactly(NONCE + MAC), PROOF_SECONDS)
        except (asyncio.TimeoutError, TimeoutError):
            answer = b""
        finally:
            self._strangers -= 1
        client, proof = answer[:NONCE], answer[NONCE:]
        if not same(proof, _proof(self.secret, b"client", server, client)):
            writer.write(REFUSED)
            peer = writer.get_extra_info("peername")
            raise PermissionError(f"a connection from {peer and peer[0]} does not know the secret; it was refused")
        writer.write(ADMITTED + _proof(self.secret, b"server", server, client))
        return _proof(self.secret, b"key", server, client)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> None:
        theirs, ours = _Frames(key, b"to server"), _Frames(key, b"to client")
        self._members[writer] = ours
        for name, value in self._kept.items():
            writer.write(ours.packed(name, value))
        while True:
            length = _length(await reader.readexactly(4))
            name, value = theirs.unpacked(await reader.readexactly(MAC), await reader.readexactly(length))
            if name in self._kept:
                continue  # the first value of this name has been sent to all
            self._kept[name] = value
            for member, frames in self._members.items():
                member.write(frames.packed(name, value))


class Client:
    """Client of the store at an address, for one rank; used on one thread.

    Args:
        where: part of the store that this client uses.

    Raises:
        PermissionError: if the other side does not know the secret of this rank.
        OSError: if no store listens there.
    """

    def __init__(self, address: Address, secret: bytes, where: str) -> None:
        self._where, self._kept = where, dict[str, bytes]()
        self._socket = socket.create_connection(address, ANSWER_SECONDS)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._socket, selectors.EVENT_READ)
        try:
            key = self._prove(secret)
        except BaseException:
            self.close()
            raise
        self._ours, self._theirs = _Frames(key, b"to server"), _Frames(key, b"to client")

    def claim(self, key: str, value: bytes) -> bytes:
        """Store ``value`` under ``key`` unless it has one; return the stored one."""
        key = f"{self._where}/{key}"
        if key not in self._kept:
            self._socket.sendall(self._ours.packed(key, value))
        while key not in self._kept:
            self._receive()
        return self._kept[key]

    def get(self, key: str) -> bytes | None:
        """Return the value under ``key``, as far as it has arrived; None if there is none."""
        key = f"{self._where}/{key}"
        while key not in self._kept and self._ready.select(0):
            self._receive()
        return self._kept.get(key)

    def close(self) -> None:
        """End the connection."""
        self._ready.close()
        self._socket.close()

    def _prove(self, secret: bytes) -> bytes:
        server, client = self._read(NONCE), os.urandom(NONCE)
        self._socket.sendall(client + _proof(secret, b"client", server, client))
        admitted = self._read(1) == ADMITTED
        if not admitted or not same(self._read(MAC), _proof(secret, b"server", server, client)):
            raise PermissionError("the store of the first rank has another secret than this rank")
        return _proof(secret, b"key", server, client)

    def _receive(self) -> None:
        length = _length(self._read(4))
        name, value = self._theirs.unpacked(self._read(MAC), self._read(length))
        self._kept.setdefault(name, value)

    def _read(self, size: int) -> bytes:
        read = b""
        while len(read) < size:
            more = self._socket.recv(size - len(read))
            if not more:
                raise ConnectionResetError("the store of the first rank has ended")
            read += more
        return read


_servers: dict[Address, Server] = {}
"""Servers of this process."""


def serve(address: Address, secret: bytes, faults: Faults) -> None:
    """Serve a store at ``address``; the same one as before if there is one.

    Raises:
        OSError: if nothing can listen there.
    """
    if address in _servers:
        _servers[address].secret, _servers[address].faults = secret, faults
    else:
        _servers[address] = Server(address, secret, faults)


def _listening(address: Address) -> socket.socket:
    family, kind, protocol, _, at = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        with suppress(OSError):  # a job that begins again need not wait for the connections of the last one to age
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(at)
        listening.listen(128)
    except BaseException:
        listening.close()
        raise
    return listening
