"""Starting a server as a client's test suite does: spawn, wait for the port, connect, publish, end.

Beside it what the commands take that scripts ask.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.installed import install
from ftstan.drill.ports import LOOPBACK, free_ports
from ftstan.wire import messages

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path

CLUSTER: Final = "test-cluster"
#: What such a suite waits for the port.
PATIENCE_MS: Final = 250.0
#: The original's, for the reader; measured once, on two cores (``docs/performance.md``).
ORIGINAL: Final = "the original, memory or a small file store: port 30 - 80, gone 3 - 13"
_HEADS: Final = ("port", "answered", "stored", "closed", "gone")
_AGAIN: Final = 50
_GROUP: Final = "bench"
_QUESTIONS: Final[tuple[tuple[str, ...], ...]] = (
    ("ftstan", "-v"),
    ("ftstan", "-help"),
    ("ftstanctl", "--help"),
    ("ftstanctl", "ft", "--help"),
    ("ftstanctl", "pub", "--help"),
    ("ftstanctl", "store", "--help"),
)
_DEADLINE_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.001
_LOGIN: Final = (
    b'CONNECT {"verbose":false,"pedantic":false,"protocol":1,"headers":true,"no_responders":true,'
    b'"lang":"bench","version":"1"}\r\nPING\r\n'
)


class StartError(Exception):
    """A server did not do what a client expects of one that has just been started."""


@dataclass(frozen=True, slots=True)
class Start:
    """Milliseconds from exec to the open port, to the answered connect request and to the stored
    publish; and from the signal until the port is closed, and until the process is gone.
    """

    port: float
    answered: float
    stored: float
    closed: float
    gone: float


def start(
    words: Sequence[str], port: int, how: signal.Signals = signal.SIGTERM, *, commands: Path
) -> Start:
    """Start a server with ``words`` behind its port, use it once, and end it with ``how``.

    ``commands``: the directory of its command. No request is repeated. Raises ``StartError``.
    """
    command = [str(commands / "ftstan"), "-a", LOOPBACK, "-p", str(port)]
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = subprocess.Popen([*command, *words], stdout=log, stderr=log)
        try:
            connection = _connect(process, port, began + _DEADLINE_S)
            opened = time.perf_counter()
            with connection:
                connection.settimeout(_DEADLINE_S)
                client = _Client(connection)
                prefix = client.join(os.urandom(8).hex().encode())
                answered = time.perf_counter()
                client.publish(prefix, b"foo", b"hello")
                stored = time.perf_counter()
                process.send_signal(how)
                closed, gone = _ends(process, port)
        except (OSError, StartError) as error:
            log.seek(0)
            shown = log.read().decode("utf-8", "replace")
            raise StartError(f"{type(error).__name__}: {error}\n{shown}") from error
        finally:
            process.kill()
            process.wait()
    return Start(
        port=1000 * (opened - began),
        answered=1000 * (answered - began),
        stored=1000 * (stored - began),
        closed=1000 * closed,
        gone=1000 * gone,
    )


class _Client:
    """A client of the protocol, as small as that can be."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._read = b""
        self._sid = 0
        self._line()  # INFO, for which every client waits
        connection.sendall(_LOGIN)
        while self._line() != b"PONG":
            pass

    def join(self, client_id: bytes) -> bytes:
        """Connect to the cluster; returns the prefix of subjects to publish to."""
        request = messages.ConnectRequest(
            client_id=client_id, heartbeat_inbox=b"hb." + client_id, conn_id=client_id, protocol=1
        )
        subject = f"_STAN.discover.{CLUSTER}".encode()
        answer = self._ask(b"hb", subject, messages.encode(request))
        response = messages.parse(messages.ConnectResponse, answer)
        if response.error:
            raise StartError(response.error.decode())
        self._id = client_id
        return response.pub_prefix

    def publish(self, prefix: bytes, channel: bytes, data: bytes) -> None:
        """Publish, and wait for the ack."""
        message = messages.PubMsg(
            client_id=self._id, conn_id=self._id, guid=b"guid", subject=channel, data=data
        )
        answer = self._ask(b"ack", prefix + b"." + channel, messages.encode(message))
        ack = messages.parse(messages.PubAck, answer)
        if ack.error:
            raise StartError(ack.error.decode())

    def _ask(self, inbox: bytes, subject: bytes, payload: bytes) -> bytes:
        self._sid += 1
        self._socket.sendall(
            b"SUB %b %d\r\nPUB %b %b %d\r\n%b\r\n"
            % (inbox, self._sid, subject, inbox, len(payload), payload)
        )
        while True:
            line = self._line()
            if line.startswith(b"HMSG"):
                raise StartError(f"nobody listens on {subject.decode()}")
            if line.startswith(b"MSG " + inbox + b" "):
                return self._take(int(line.split()[-1]) + 2)[:-2]
            if line.startswith(b"-ERR"):
                raise StartError(line.decode())

    def _line(self) -> bytes:
        while (end := self._read.find(b"\r\n")) < 0:
            self._more()
        line = self._read[:end]
        self._read = self._read[end + 2 :]
        return line

    def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            self._more()
        taken = self._read[:size]
        self._read = self._read[size:]
        return taken

    def _more(self) -> None:
        chunk = self._socket.recv(65536)
        if not chunk:
            raise StartError("the server closed the connection")
        self._read += chunk


def _connect(process: subprocess.Popen[bytes], port: int, end: float) -> socket.socket:
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((LOOPBACK, port), _DEADLINE_S)
        if process.poll() is not None or time.perf_counter() > end:
            raise StartError("the port was never open")
        time.sleep(_LOOK_EVERY_S)


def _ends(process: subprocess.Popen[bytes], port: int) -> tuple[float, float]:
    """Seconds until nobody listens, and until the process is gone."""
    began = time.perf_counter()
    closed = 0.0
    gone = 0.0
    # The NATS server of a process that was killed ends a moment after it.
    while not (closed and gone):
        if not closed:
            try:
                socket.create_connection((LOOPBACK, port), _DEADLINE_S).close()
            except OSError:
                closed = time.perf_counter() - began
        if not gone and process.poll() is not None:
            gone = time.perf_counter() - began
        if time.perf_counter() - began > _DEADLINE_S:
            raise StartError("it did not end")
        time.sleep(_LOOK_EVERY_S / 2)
    return closed, gone


def again(count: int, directory: str, port: int, *, commands: Path) -> list[Start]:
    """So many starts on one port and one directory, each right behind the end of the one before."""
    words = ("-store", "file", "-dir", os.path.join(directory, "store"))
    return [start(words, port, commands=commands) for _ in range(count)]


def in_time(starts: Sequence[Start]) -> int:
    """How many had an open port as soon as such a suite wants it."""
    return sum(one.port <= PATIENCE_MS for one in starts)


def run(options: argparse.Namespace) -> None:
    """Print a row for each kind of store, and one for each question."""
    with tempfile.TemporaryDirectory(prefix="ftstan-bench-") as directory:
        _rows(options, directory, install(directory))


def _rows(options: argparse.Namespace, directory: str, commands: Path) -> None:
    rounds = max(options.rounds, 5)
    print(f"\n{'starts and stops, medians in ms':44}" + "".join(f"{head:>10}" for head in _HEADS))
    _row("memory", [start((), free_ports(1)[0], commands=commands) for _ in range(_AGAIN)])
    starts = again(_AGAIN, directory, free_ports(1)[0], commands=commands)
    _row("file, small", starts)
    for name, *fill in (
        (f"file, {options.channels:,} channels", "--channels", str(options.channels)),
        ("file, 1,000,000 messages", "--messages", "1000000"),
    ):
        store = os.path.join(directory, "filled")
        subprocess.run([sys.executable, "-m", "benchmarks.fill", store, *fill], check=True)
        limits = ("-mc", "0", "-mm", "0", "-mb", "0")
        words = ("-store", "file", "-dir", store, *limits)
        filled = [start(words, free_ports(1)[0], commands=commands) for _ in range(rounds)]
        _row(name, filled)
        shutil.rmtree(store)
    print(f"{in_time(starts)} of {len(starts)} small starts had a port within {PATIENCE_MS:g} ms")
    print(ORIGINAL)
    for program, *rest in _QUESTIONS:
        _answer(commands / program, rest, rounds)
    with _pair(commands, directory) as url:
        _answer(
            commands / "ftstanctl", ("ft", "status", "--group", _GROUP, "--server", url), rounds
        )


def _row(name: str, starts: Sequence[Start]) -> None:
    medians = [statistics.median(column) for column in zip(*map(astuple, starts), strict=True)]
    print(f"{name:44}" + "".join(f"{value:10.0f}" for value in medians), flush=True)


def _answer(command: Path, words: Sequence[str], rounds: int) -> None:
    """Print what a question takes."""
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([str(command), *words], check=True, stdout=subprocess.DEVNULL)
        times.append(1000 * (time.perf_counter() - began))
    shown = " ".join((command.name, *itertools.takewhile(lambda word: word != "--group", words)))
    print(f"{shown:44}{statistics.median(times):10.0f}", flush=True)


@contextlib.contextmanager
def _pair(commands: Path, directory: str) -> Iterator[str]:
    """Two members of a group, one of which serves; gives the URL of the other one."""
    ports = free_ports(4)
    with contextlib.ExitStack() as ended:
        for port, route in (ports[:2], ports[2:]):
            words = (
                *("-a", LOOPBACK, "-p", str(port), "-ft_group", _GROUP),
                *("-store", "file", "-dir", os.path.join(directory, "pair")),
                *("-cluster", f"nats://{LOOPBACK}:{route}"),
                *("-routes", f"nats://{LOOPBACK}:{ports[1]}"),
            )
            log = ended.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen([str(commands / "ftstan"), *words], stdout=log, stderr=log)
            ended.callback(process.wait)
            ended.callback(process.terminate)
            _connect(process, port, time.perf_counter() + _DEADLINE_S).close()
        url = f"nats://{LOOPBACK}:{ports[2]}"
        status = ("ft", "status", "--group", _GROUP, "--server", url, "--expect", "2")
        end = time.perf_counter() + _DEADLINE_S
        while (
            subprocess.run(
                [str(commands / "ftstanctl"), *status], check=False, stdout=subprocess.DEVNULL
            ).returncode
            and time.perf_counter() < end
        ):
            time.sleep(_LOOK_EVERY_S)
        yield url
