"""The processes of one session: a NATS server, streaming servers that an onlooker watches, and
client programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from typing import TYPE_CHECKING

from ftstan.drill.processes import nats_words
from tests.compat.players.natswire import HOST, Onlooker, Operation
from tests.processes import ROOT, free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.compat.players.transcript import Transcript

_STAMP = re.compile(r"\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} (.*)")
_PATIENCE_S = 60.0


class UnplayableError(Exception):
    """The session cannot go on: a server or a program did not do what everything behind it leans
    on.
    """


class Program:
    """A process whose output goes into the transcript as ``name``, and its NATS connections with
    it.
    """

    def __init__(self, name: str, transcript: Transcript, nats_port: int) -> None:
        self.name = name
        self.starts = 0
        self._transcript = transcript
        self._onlooker = Onlooker(nats_port, self._told)
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._subscribed: set[str] = set()
        self._said: list[str] = []

    async def open(self) -> None:
        await self._onlooker.open()

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self._onlooker.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, words: Sequence[str]) -> None:
        self.starts += 1
        self._subscribed.clear()
        self._said.clear()
        self._process = await asyncio.create_subprocess_exec(
            *words, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, limit=1 << 20,
        )  # fmt: skip
        self._watching = asyncio.create_task(self._watch(self._process, self.starts))

    async def _watch(self, process: asyncio.subprocess.Process, number: int) -> None:
        assert process.stdout is not None
        async for raw in process.stdout:
            said = raw.decode("utf-8", "replace").rstrip("\n")
            stamped = _STAMP.fullmatch(said)
            self._said.append(stamped[1] if stamped else said)
            self._transcript.log(self.name, self._said[-1])
        status = await process.wait()
        how = f"signal {-status}" if status < 0 else str(status)
        self._transcript.event(self._exit_id(number), f"{self.name} ended, exit status {how}")

    def _exit_id(self, number: int) -> str:
        return f"{self.name}.exit{number}"

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def ended(self) -> bool:
        return any(line.id == self._exit_id(self.starts) for line in self._transcript.lines)

    async def end(self) -> None:
        if self.running:
            self.signal(signal.SIGKILL)
        if self._watching is not None:
            await self._watching
        await self._onlooker.close()

    def _told(self, number: int, direction: str, operation: Operation | None) -> None:
        conn = self._conn(number, operation)
        if operation is None or not conn:
            return
        if operation.name == "SUB":
            self._subscribed.add(operation.subject)
        self._transcript.passed(conn, direction, operation)

    def _conn(self, number: int, operation: Operation | None) -> str:
        return self.name if number == 1 else f"{self.name}#{number}"

    def _tail(self) -> str:
        return "\n".join(self._said)[-800:]


class Server(Program):
    """A streaming server.

    Its connections are named by the last part of the name that they give to NATS.
    """

    def __init__(self, name: str, transcript: Transcript, nats_port: int) -> None:
        super().__init__(name, transcript, nats_port)
        self._conns: dict[int, str] = {}

    def _conn(self, number: int, operation: Operation | None) -> str:
        if operation is not None and operation.name == "CONNECT":
            self._conns[number] = (
                f"{self.name}.{operation.options.get('name', '').rpartition('-')[2]}"
            )
        return self._conns.get(number, "")

    async def serve(self, flags: Sequence[str]) -> None:
        """Start it; does not wait."""
        await self.start([sys.executable, "-m", "ftstan.cli.server", "-ns", self.url, *flags])

    async def wait_until_listening(self) -> None:
        """Wait until it listens to its clients. Raises ``UnplayableError`` when it ends instead."""
        await self._wait(self.listening, "does not serve")

    def listening(self) -> bool:
        """Whether it listens to its clients."""
        return any(subject.endswith(".pings") for subject in self._subscribed)

    async def wait_until_it_says(self, text: str) -> None:
        """Wait until it has said something since its last start.

        Raises ``UnplayableError`` when it ends instead.
        """
        await self._wait(lambda: any(text in line for line in self._said), f"does not say {text!r}")

    async def _wait(self, done: Callable[[], bool], otherwise: str) -> None:
        await self._transcript.until(lambda: done() or self.ended(), _PATIENCE_S)
        if not done():
            raise UnplayableError(f"{self.name} {otherwise}\n{self._tail()}")


class Stage:
    """All of one session. ``programs`` by name."""

    def __init__(self, directory: Path, transcript: Transcript) -> None:
        self.directory = directory
        self.nats_port = 0
        self.servers: dict[str, Server] = {}
        self._transcript = transcript
        self._nats: asyncio.subprocess.Process | None = None
        self._programs: list[Program] = []

    async def open(self, nats_conf: str) -> None:
        """Start the NATS server, with these lines in its configuration."""
        self.directory.mkdir(parents=True)
        config = self.directory / "nats.conf"
        config.write_text(nats_conf + "\n", encoding="utf-8")
        (self.nats_port,) = free_ports(1)
        words = nats_words(self.nats_port, "-c", str(config))
        with (self.directory / "nats.log").open("wb") as log:
            self._nats = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
        if not await self._accepts():
            raise UnplayableError("nats-server does not accept connections")

    async def _accepts(self) -> bool:
        for _ in range(600):
            try:
                _, writer = await asyncio.open_connection(HOST, self.nats_port)
            except ConnectionError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return True
        return False

    async def server(self, name: str) -> Server:
        """A streaming server by its name, made when it is first asked for."""
        if name not in self.servers:
            self.servers[name] = Server(name, self._transcript, self.nats_port)
            await self.servers[name].open()
            self._programs.append(self.servers[name])
        return self.servers[name]

    async def program(self, name: str) -> Program:
        """Another client program."""
        program = Program(name, self._transcript, self.nats_port)
        await program.open()
        self._programs.append(program)
        return program

    async def close(self) -> None:
        for program in self._programs:
            await program.end()
        if self._nats is not None:
            with contextlib.suppress(ProcessLookupError):
                self._nats.kill()
            await self._nats.wait()
