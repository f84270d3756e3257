"""Children on this host: started, waited for until a deadline, and ended by their own pid.

The one launcher of drills, of the demo, of measurements and of tests. A wait that is in vain raises
``TimeoutError``; nothing here asserts how long something took.
"""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import time
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import IO, TYPE_CHECKING, Protocol

from ftstan.drill.errors import DrillError
from ftstan.drill.ports import LOOPBACK
from ftstan.nats.binary import binary_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PATIENCE_S = 120.0
"""How long a wait may last that does not say: nothing that works comes near it."""

_POLL_S = 0.01
_SHOWN = 40


class EndedError(DrillError):
    """A child ended before it did what was waited for."""


def nats_words(port: int, *more: str) -> list[str]:
    """The command of a nats-server on loopback that does not outlive the thread that starts it."""
    server = [binary_path(), "-a", LOOPBACK, "-p", str(port), *more]
    return ["setpriv", "--pdeathsig", "KILL", *server]


def until(condition: Callable[[], object], what: str, within: float = PATIENCE_S) -> None:
    """Wait for what happens in another process, seconds. Raises ``TimeoutError`` with ``what``."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within:g} s in vain for {what}")
        time.sleep(_POLL_S)


def fetch(port: int, path: str, within: float, *, token: str = "") -> tuple[int, bytes]:
    """A page on loopback: status and body; status 0 when nobody answers."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=within)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def alive(pid: int) -> bool:
    """Whether a process exists and is not only waiting to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def children(pid: int) -> list[int]:
    """Processes that ``pid`` started and that still run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += [int(word) for word in (task / "children").read_text().split()]
    return [child for child in found if alive(child)]


class Process(Protocol):
    """What a ``Child`` needs of ``subprocess.Popen``."""

    pid: int
    returncode: int | None
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """The exit status, negative for a signal; ``None`` while it runs."""

    def wait(self, timeout: float) -> int:
        """Wait for its end, seconds. Raises ``subprocess.TimeoutExpired``."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it still runs."""


class Child:
    """A process in a group of its own: Ctrl-C at a terminal does not reach it.

    Its output (both streams) is appended to ``log``; ``piped``: its errors only, see ``stdin``;
    ``session``: it has no terminal at all.
    """

    def __init__(
        self,
        words: Sequence[str],
        log: str | Path,
        environment: Mapping[str, str] | None = None,
        *,
        directory: str | Path | None = None,
        piped: bool = False,
        session: bool = False,
    ) -> None:
        self.words = list(words)
        self.log = Path(log)
        self._seen = self.log.stat().st_size if self.log.exists() else 0
        self._process = self._begin(environment, directory, piped=piped, session=session)

    def _begin(
        self,
        environment: Mapping[str, str] | None,
        directory: str | Path | None,
        *,
        piped: bool,
        session: bool,
    ) -> Process:
        """Start it, with the arguments of the constructor."""
        with self.log.open("ab") as output:
            return subprocess.Popen(
                self.words,
                cwd=directory,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else output,
                stderr=output,
                env=environment,
                start_new_session=session,
                process_group=None if session else 0,
            )

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        """Of a piped child."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Of a piped child."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; ``None`` while it runs."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self.returncode is None

    def signal(self, number: Signals) -> None:
        """Send a signal, if it still runs."""
        self._process.send_signal(number)

    def wait(self, within: float = PATIENCE_S) -> bool:
        """Wait for its end, seconds; whether it came."""
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it without giving it a chance to say anything, and reap it."""
        self.signal(SIGKILL)
        self._process.wait(PATIENCE_S)

    def stop(self, within: float, number: Signals = SIGTERM) -> None:
        """Ask it to end, insist after a while, and reap it."""
        self.signal(number)
        if not self.wait(within):
            self.kill()
        self.close()

    def close(self) -> None:
        """Close its pipes."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def text(self) -> str:
        """What this process has written so far."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._seen)
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def last_lines(self, most: int = 15) -> list[str]:
        """The end of it."""
        return self.text().splitlines()[-most:]

    def tail(self) -> str:
        """The end of it under the name of the log, for reports."""
        return "\n".join([f"--- {self.log.name} ---", *self.last_lines(_SHOWN)])

    def wait_for(self, text: str, times: int = 1, within: float = PATIENCE_S) -> None:
        """Wait until it has written ``text`` that often, seconds.

        Raises ``EndedError`` and ``TimeoutError``.
        """

        def there() -> bool:
            status = self.returncode
            if self.text().count(text) >= times:
                return True
            if status is not None:
                name = self.log.name
                raise EndedError(f"{name} ended ({status}) before it said {text!r}\n{self.tail()}")
            return False

        until(there, f"{text!r} in {self.log.name}\n{self.tail()}", within)
