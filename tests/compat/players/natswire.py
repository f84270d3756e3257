"""The NATS protocol as it passes, operation by operation, for clients that write it themselves and
for an onlooker.

``read`` takes one operation from a stream of either direction. ``Link`` is a client's connection.
``Onlooker`` stands between a program and a NATS server, tells every operation before it passes it
on, and changes nothing but one field of INFO.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
LIMIT = 8 << 20
"""The longest line and payload that is read."""


@dataclass(slots=True)
class Operation:
    """One operation.

    ``raw``: its bytes; ``text``: what -ERR says; ``options``: those of INFO and CONNECT.
    """

    name: str
    raw: bytes
    subject: str = ""
    reply: str = ""
    sid: str = ""
    text: str = ""
    hdr: bytes = b""
    payload: bytes | None = None
    options: dict[str, Any] = field(default_factory=dict)


async def read(reader: asyncio.StreamReader) -> Operation | None:
    """The next operation, ``None`` when the stream has ended."""
    try:
        line = await reader.readuntil(b"\r\n")
        name, _, rest = line[:-2].partition(b" ")
        words = rest.decode("latin-1").split()
        operation = Operation(name.decode().upper(), line)
        match operation.name:
            case "INFO" | "CONNECT":
                operation.options = json.loads(rest)
            case "SUB":
                operation.subject = words[0]
                operation.sid = words[-1]
            case "UNSUB":
                operation.sid = words[0]
            case "PUB" | "HPUB" | "MSG" | "HMSG":
                await _read_message(reader, operation, words)
            case "-ERR":
                operation.text = rest.decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return operation


async def _read_message(
    reader: asyncio.StreamReader, operation: Operation, words: list[str]
) -> None:
    headed = operation.name.startswith("H")
    sizes = [int(words.pop()) for _ in range(1 + headed)]
    total = sizes[0]
    head = sizes[-1] if headed else 0
    body = await reader.readexactly(total + 2)
    operation.raw += body
    operation.hdr = body[:head]
    operation.payload = body[head:total]
    operation.subject = words.pop(0)
    if operation.name.endswith("MSG"):
        operation.sid = words.pop(0)
    operation.reply = words[0] if words else ""


Told = Callable[[str, Operation | None], None]
"""Called with the direction, ``c2s`` or ``s2c``, and an operation.

``None`` when that direction has ended.
"""


class Link:
    """A client's connection to a NATS server on a loopback port.

    Answers PING by itself, and nothing else.
    """

    def __init__(self, port: int, told: Told) -> None:
        self._port = port
        self._told = told
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Connect; INFO is told, and the client has said nothing yet."""
        reader, self._writer = await asyncio.open_connection(HOST, self._port, limit=LIMIT)
        info = await read(reader)
        self._told("s2c", info)
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while operation := await read(reader):
            self._told("s2c", operation)
            if operation.name == "PING":
                self.write(b"PONG\r\n")
        self._told("s2c", None)

    def write(self, data: bytes) -> None:
        """Send bytes as they are; nothing is sent on a connection that is closed."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(data)

    async def close(self) -> None:
        if self._writer is None or self._reading is None:
            return
        self._writer.close()
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await self._reading
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        self._writer = None


class Onlooker:
    """A port that leads to a NATS server.

    ``told(connection, direction, operation)``: connections count from 1.
    """

    def __init__(self, nats_port: int, told: Callable[[int, str, Operation | None], None]) -> None:
        self._nats_port = nats_port
        self._told = told
        self._count = 0
        self._passing: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0, limit=LIMIT)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._passing):
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        number = self._count
        task = asyncio.create_task(self._between(number, reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _between(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            nats_reader, nats_writer = await asyncio.open_connection(
                HOST, self._nats_port, limit=LIMIT
            )
        except ConnectionError:
            writer.close()
            return
        try:
            await asyncio.gather(
                self._pass(number, "c2s", reader, nats_writer),
                self._pass(number, "s2c", nats_reader, writer),
            )
        finally:
            writer.close()
            nats_writer.close()

    async def _pass(
        self,
        number: int,
        direction: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        while operation := await read(reader):
            self._told(number, direction, operation)
            writer.write(_without_other_ways(operation))
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        self._told(number, direction, None)
        writer.close()


def _without_other_ways(operation: Operation) -> bytes:
    """INFO must not lead a client past the onlooker; all else passes as it is."""
    if operation.name != "INFO" or "connect_urls" not in operation.options:
        return operation.raw
    options = {name: value for name, value in operation.options.items() if name != "connect_urls"}
    return b"INFO " + json.dumps(options).encode() + b"\r\n"
