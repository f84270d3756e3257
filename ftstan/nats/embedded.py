"""The embedded NATS server: a real ``nats-server`` as a supervised child that never outlives this
process.

Only ``launch`` starts one, and it has to run on the thread of this event loop, which lives as long
as the process. A failure of the first start is the caller's to report (exit 1, no second try); a
later death is repaired here, for ever.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base import log
from ftstan.base.clock import Clock, SystemClock
from ftstan.base.errors import ConfigError, NatsError, UnansweredError
from ftstan.nats import childlog, tasks
from ftstan.nats.direct_road import behind, ends_tls
from ftstan.nats.generated import NatsServerOptions, extra_token, refusal
from ftstan.nats.launch import client_url, launch, write_configuration
from ftstan.nats.watched import Watched

if TYPE_CHECKING:
    from ftstan.front.listener import Front
    from ftstan.nats.launch import Launched

__all__ = ["Backoff", "NatsServerChild", "NatsServerOptions"]

READY_WITHIN_S = 10.0
_READY_JETSTREAM_S = 60.0
"""JetStream writes and syncs its directory first."""
STOP_WITHIN_S = 3.0
#: A child that a signal has stopped (SIGSTOP) has so long to go on.
STOPPED_FOR_S = 5.0
_LOOK_EVERY_S = 0.5
#: Seconds in which the streaming server's own connections, each of which tries every 250 ms, come
#: before clients to a child that was started again and takes only so many.
_OURS_FIRST_S = 0.6
#: So often another port behind the listener is tried.
_OTHER_PORTS = 5
_READY_POLL_S = 0.002


class Backoff:
    """Seconds to wait before the next start: 0.1, doubling to 5.

    From the beginning after a life of 10 s.
    """

    FIRST_S = 0.1
    CEILING_S = 5.0
    GOOD_LIFE_S = 10.0

    def __init__(self) -> None:
        self._next = self.FIRST_S

    def after(self, lived_s: float) -> float:
        """Return the wait that follows a life of ``lived_s`` seconds (0: it did not start at
        all).
        """
        if lived_s >= self.GOOD_LIFE_S:
            self._next = self.FIRST_S
        wait = self._next
        self._next = min(wait * 2, self.CEILING_S)
        return wait


class NatsServerChild:
    """One ``nats-server`` process, restarted when it dies, on the same ports.

    ``launched``: the first one, if it runs already. ``front``: the listener in front of it, which
    clients connect to; whoever made it stops it.

    ``start`` and ``stop`` belong to one event loop. ``client_url``, ``link_url``, ``monitor_port``
    and ``cluster_port`` are known once ``start`` has returned; ``monitor_port`` (loopback, for
    ``/varz`` and its like) changes at a restart.
    """

    def __init__(
        self,
        options: NatsServerOptions,
        *,
        clock: Clock | None = None,
        sink: childlog.LogSink | None = None,
        launched: Launched | None = None,
        front: Front | None = None,
    ) -> None:
        self._front = front
        self._ends_tls = False
        self._options = self._placed(options)
        self._launched = launched
        self._clock = clock or SystemClock()
        self._sink: childlog.LogSink = sink or log.nats
        self._process: Watched | None = None
        self._reader: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._last_words = ""
        self._name = ""
        self._directory = ""
        self._reloading: asyncio.Future[None] | None = None
        self._draining = False
        self._drained = asyncio.Event()
        self._born = 0.0
        self._port = 0
        self._cluster_port = 0
        self._monitor_port = 0

    @property
    def pid(self) -> int | None:
        """Process id of the child, None while there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def link_url(self) -> str:
        """Where our own links connect: loopback when the child listens on every interface.

        Without credentials.
        """
        return client_url(self._options.host, self._port)

    @property
    def client_url(self) -> str:
        """Where clients on this host connect."""
        return (
            client_url(self._front.host, self._front.port)
            if self._front is not None
            else self.link_url
        )

    @property
    def port(self) -> int:
        """The client port, the real one when a random one was asked for."""
        return self._front.port if self._front is not None else self._port

    @property
    def cluster_port(self) -> int:
        """The port for routes, 0 without ``cluster_listen``."""
        return self._cluster_port

    @property
    def monitor_port(self) -> int:
        """The child's own HTTP port, on 127.0.0.1 only."""
        return self._monitor_port

    async def start(self) -> None:
        """Start the child and wait until it serves.

        Raises ``ConfigError`` for options that contradict each other, and ``NatsError`` with the
        child's own words when it ends first (``Error listening on port: ...``) or is not ready
        within 10 s; nothing is left running then.
        """
        others = _OTHER_PORTS
        while self.pid is None:
            try:
                await self._spawn()
            except NatsError:
                if not others or not self._is_port_taken():
                    raise
                others -= 1
                self._choose_port()
        if self._front is not None:
            self._front.serve(on=True)
        self._supervisor = tasks.spawn(self._supervise(), "nats-server")

    async def stop(self) -> None:
        """End the child: SIGTERM, and SIGKILL after 3 s. Harmless when it is not running."""
        if self._supervisor is not None:
            supervisor = self._supervisor
            self._supervisor = None
            await tasks.end(supervisor, 2 * STOP_WITHIN_S)
        # In lame duck mode it does not listen to SIGTERM, and its clients have been told to leave.
        await self._end(signal.SIGKILL if self._draining else signal.SIGTERM)

    async def reload(self, options: NatsServerOptions) -> None:
        """Let the child take over ``options``, and start it with them from now on.

        Raises ``ConfigError`` for options that contradict each other and ``NatsError`` with the
        child's own words when it refuses them; it goes on with what it had then.
        ``UnansweredError``: it has not answered for 10 s, and may yet take them over.
        """
        options = self._placed(options)
        process = self._process
        if process is None or process.returncode is not None:
            # The supervisor is about to start it: that reads the new ones.
            self._options = options
            return
        answer = self._reloading = asyncio.get_running_loop().create_future()
        if extra_token(options) != extra_token(self._options):
            raise ConfigError(
                "cannot change -auth beside a users array without a restart",
                hint="nothing was changed; take that back, or restart the server",
            )
        # Under its former name, for that is what the child reads; and gone again as soon as it has.
        try:
            os.mkdir(self._directory, 0o700)
            try:
                write_configuration(
                    self._directory,
                    options,
                    self._name,
                    port=self._port,
                    cluster_port=self._cluster_port,
                )
                process.send_signal(signal.SIGHUP)
                async with asyncio.timeout(READY_WITHIN_S):
                    await answer
            finally:
                shutil.rmtree(self._directory, ignore_errors=True)
        except TimeoutError:
            raise UnansweredError(
                f"nats-server (pid {process.pid}) has not answered for {READY_WITHIN_S:g} s"
            ) from None
        except OSError as error:
            raise NatsError(
                f"the configuration of nats-server cannot be written: {error}"
            ) from error
        finally:
            self._reloading = None
        self._options = options

    def lame_duck(self) -> None:
        """Let the child take no new clients, tell those it has to go elsewhere, and end when they
        have.
        """
        self._draining = True
        if self._front is not None:
            self._front.close_port()
        if self.pid is None:
            self._drained.set()
        else:
            os.kill(self.pid, signal.SIGUSR2)

    async def drained(self) -> None:
        """Wait for the end of a child that was told ``lame_duck``."""
        await self._drained.wait()

    def _is_port_taken(self) -> bool:
        """Whether somebody has taken the port behind the listener since it was chosen."""
        options = self._options
        taken = f"{childlog.NOT_LISTENING}{options.host}:{options.port},"
        return self._front is not None and self._last_words.startswith(taken)

    def _choose_port(self) -> None:
        assert self._front is not None
        former = self._options.port
        self._front.choose_server_port()
        self._options = replace(self._options, port=self._front.server_port)
        self._sink.info(
            f"another process has taken port {former}, where nats-server was to listen behind the "
            f"client port: trying {self._options.port}"
        )

    def _placed(self, options: NatsServerOptions) -> NatsServerOptions:
        if self._front is None:
            return options
        self._ends_tls = ends_tls(options)
        return behind(options, self._front)

    async def _spawn(self) -> None:
        """Start one process and wait until it is ready.

        On any failure it is gone, and so is its directory.
        """
        launched = self._launched or launch(
            self._options, port=self._port, cluster_port=self._cluster_port
        )
        self._launched = None
        launched.open_gate()
        launched.output.release()
        try:
            self._name = launched.name
            self._directory = launched.directory
            self._last_words = ""
            self._born = self._clock.mono()
            self._reader = None
            self._process = Watched(launched.process, launched.output)
            try:
                printed = await self._process.output()
                self._reader = tasks.spawn(self._fold(printed), "nats-server log")
                await self._until_ready(launched)
            except BaseException:
                await self._end(signal.SIGKILL)
                raise
        except OSError as error:
            raise NatsError(f"cannot start nats-server: {error}") from error
        finally:
            launched.remove_files()

    async def _until_ready(self, launched: Launched) -> None:
        """Wait for the ports file (written when every listener is open), then for the health
        page.
        """
        assert self._process is not None
        # JetStream counts as ill until other nodes are there; who waits for them must start, too.
        alone = self._options.jetstream is None
        page = "/healthz" if alone else "/healthz?js-enabled-only=true"
        within = READY_WITHIN_S if alone else _READY_JETSTREAM_S
        try:
            async with asyncio.timeout(within):
                while self._process.returncode is None:
                    ports = launched.ports()
                    if ports and await _healthy(ports["monitoring"], page):
                        self._port = ports["nats"]
                        self._cluster_port = ports.get("cluster", 0)
                        self._monitor_port = ports["monitoring"]
                        return
                    await asyncio.sleep(_READY_POLL_S)
        except TimeoutError:
            raise NatsError(
                f"nats-server (pid {self._process.pid}) was not ready within {within:g} s",
                hint="its last lines are in the log above",
            ) from None
        how = await self._epitaph()
        hint = ""
        if "address already in use" in self._last_words:
            hint = (
                "another process has this port: stop it, or choose another one with -p or -cluster"
            )
        words, _ = refusal(self._last_words)
        if words != self._last_words:
            # Of a file that nobody but us has seen.
            words = f"nats-server refuses its part: {words}"
            hint = "--check-config says which key it is about"
        raise NatsError(words or f"nats-server ended before it was ready ({how})", hint=hint)

    async def _fold(self, stream: asyncio.StreamReader) -> None:
        """Copy the child's lines into our log.

        What it says when it fails is kept for the error or the restart line.
        """
        splitter = childlog.LineSplitter()
        servers = childlog.ServerLines()
        while True:
            chunk = await stream.read(65536)
            for raw in splitter.feed(chunk):
                line = childlog.parse_line(raw)
                if not servers.allows(line, self._clock.mono()):
                    continue
                if count := servers.take_left_out():
                    self._sink.warning(
                        f"{count} lines about connections of other servers were left out"
                    )
                if self._reloading is not None and self._is_verdict(line.text, self._reloading):
                    continue
                if line.level == "fatal":
                    self._last_words = line.text
                elif line.wanted:
                    if self._front is not None and line.text.startswith(childlog.LISTENING):
                        line = childlog.Line(line.level, childlog.LISTENING + self._front.address)
                        if self._ends_tls:
                            childlog.write(self._sink, line)
                            line = childlog.Line(line.level, childlog.TLS_REQUIRED)
                    childlog.write(self._sink, line)
                    if line.level is None and not self._last_words:
                        self._last_words = line.text
            if not chunk:
                return

    def _is_verdict(self, text: str, answer: asyncio.Future[None]) -> bool:
        """Whether the line says how a reload went.

        That it failed is told by whoever asked for it.
        """
        if answer.done():
            return False
        if text.startswith(childlog.NOT_RELOADED):
            answer.set_exception(NatsError(text.removeprefix(childlog.NOT_RELOADED)))
            return True
        if text == childlog.RELOADED:
            self._sink.info(text)
            answer.set_result(None)
            return True
        return False

    async def _supervise(self) -> None:
        backoff = Backoff()
        while True:
            assert self._process is not None
            await self._until_over(self._process)
            if self._draining:
                self._drained.set()
                return
            if self._front is not None:
                self._front.serve(on=False)
            pid = self._process.pid
            how = await self._epitaph()
            wait = backoff.after(self._clock.mono() - self._born)
            said = f": {self._last_words}" if self._last_words else ""
            self._sink.error(
                f"nats-server (pid {pid}) ended unexpectedly ({how}){said}; starting it again in "
                f"{wait:g} s"
            )
            await self._revive(backoff, wait)
            self._sink.warning(f"nats-server is running again (pid {self.pid})")

    async def _until_over(self, process: Watched) -> None:
        """Wait for the end of the child.

        One that somebody has stopped serves nobody and is killed.
        """
        over = tasks.waited(process.wait(), "nats-server's end")
        stopped = 0
        try:
            while not over.done():
                await asyncio.wait([over], timeout=_LOOK_EVERY_S)
                stopped = stopped + 1 if not over.done() and _is_stopped(process.pid) else 0
                if stopped * _LOOK_EVERY_S >= STOPPED_FOR_S:
                    self._sink.error(
                        f"nats-server (pid {process.pid}) was stopped by a signal "
                        f"{STOPPED_FOR_S:g} s ago: killing it"
                    )
                    process.kill()
                    stopped = 0
        finally:
            over.cancel()

    async def _revive(self, backoff: Backoff, wait: float) -> None:
        while True:
            await asyncio.sleep(wait)
            try:
                await self._spawn()
            except NatsError as error:
                wait = backoff.after(0.0)
                self._sink.error(
                    f"nats-server could not be started again: {error}; next try in {wait:g} s"
                )
            else:
                break
        if self._front is not None:
            if self._options.settings.get("max_connections"):
                # Clients may be more than that, and would take every place.
                await asyncio.sleep(_OURS_FIRST_S)
            self._front.serve(on=True)

    async def _epitaph(self) -> str:
        """How the ended process ended; its log has been read to the end when this returns."""
        assert self._process is not None
        assert self._reader is not None
        code = await self._process.wait()
        await self._reader
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"

    async def _end(self, how: signal.Signals = signal.SIGTERM) -> None:
        process = self._process
        self._process = None
        if process is None:
            return
        process.send_signal(how)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._reader is not None:
            await self._reader


def _is_stopped(pid: int) -> bool:
    """Whether a signal has stopped this process.

    A debugger's does not count: somebody looks at it.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


async def _healthy(port: int, page: str) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(f"GET {page} HTTP/1.0\r\n\r\n".encode())
        return b" 200 " in await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()
