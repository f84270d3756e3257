"""A TCP forwarder that stands between a node and NATS, so that a drill can cut the two apart
without root.

``python -m ftstan.drill.proxy PORT TARGET``, both on loopback. A partition is SIGSTOP to this
process: connections stay open and nothing passes, as when packets are dropped; SIGCONT heals it. It
must never look at what it forwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from ftstan.drill.ports import LOOPBACK

_CHUNK = 1 << 16


async def forward(port: int, target: int) -> None:
    """Forward until the process ends."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(LOOPBACK, target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    server = await asyncio.start_server(accept, LOOPBACK, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(forward(int(sys.argv[1]), int(sys.argv[2])))
