"""The demo's children: two ftstan nodes and the Node.js clients, each ended by its own pid.

Nothing here decides when something dies; it starts, signals, asks over HTTP and cleans up.
"""

from __future__ import annotations

import http
import json
import os
import secrets
import signal
import sys
import threading

from ftstan.base.errors import FtstanError
from ftstan.drill.node_watch import handover_age
from ftstan.drill.ports import LOOPBACK
from ftstan.drill.processes import Child, fetch

CLUSTER = "demo"
GROUP = "demo-group"
CHANNEL = "demo"
HTTP_TIMEOUT = 1.0
STOP_TIMEOUT = 15.0
STEPPED_DOWN = 75

#: What the two nodes of one run show each other.
_ROUTES_PASSWORD = secrets.token_hex(16)

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(_HERE)


class DemoError(FtstanError):
    """The demo cannot go on."""


def _ended(what: str, child: Child) -> DemoError:
    status = child.returncode
    return DemoError(f"{what} ended by itself with status {status}", hint=f"see {child.log}")


def _settings_file(log: str, routes: tuple[int, ...], streaming: str) -> str:
    """Path of a configuration beside ``log``: a password on a command line would be in the list of
    processes.
    """
    path = f"{log}.conf"
    own, *others = routes
    urls = ", ".join(f'"nats://{LOOPBACK}:{other}"' for other in others)
    text = (
        f'cluster {{ listen: "{LOOPBACK}:{own}", routes: [{urls}],'
        f' authorization {{ user: routes, password: "{_ROUTES_PASSWORD}" }} }}\n{streaming}'
    )
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)
    return path


class Node:
    """One ftstan server: command line, role, signals.

    ``store``: the words that say where it keeps messages; ``routes``: its own port and those that
    it connects to; ``streaming``: that half of its configuration; ``mode``: words that say what it
    is, by default a member of the pair.
    """

    def __init__(
        self,
        name: str,
        *,
        store: list[str],
        log: str,
        port: int,
        routes: tuple[int, ...],
        monitor_port: int,
        streaming: str = "streaming { }\n",
        mode: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.port = port
        self.log = log
        self._monitor_port = monitor_port
        self._words = [
            *(sys.executable, "-m", "ftstan.cli.server"),
            *("-cid", CLUSTER, *store),
            *(mode or ("-ft_group", GROUP, "-ft_member", name)),
            *("-a", LOOPBACK, "-p", str(port), "-m", str(monitor_port), "-l", log),
            *("-c", _settings_file(log, routes, streaming)),
        ]
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start the server process."""
        self._child = Child(self._words, self.log, directory=_ROOT)

    def signal(self, number: signal.Signals) -> None:
        """Send ``number`` to the server process."""
        assert self._child is not None
        self._child.signal(number)

    def wait_for_end(self) -> None:
        """Wait until the signalled process is gone.

        Raises :class:`DemoError` when it takes too long.
        """
        assert self._child is not None
        if not self._child.wait(STOP_TIMEOUT):
            raise DemoError(
                f"node {self.name} did not end within {STOP_TIMEOUT:.0f} s", hint=f"see {self.log}"
            )

    def end(self) -> None:
        """Stop the server process if it runs, and wait for its end."""
        if self._child is not None:
            self._child.stop(STOP_TIMEOUT)

    def require_alive(self) -> None:
        """Raise :class:`DemoError` when the process has ended on its own."""
        if self._child is not None and not self._child.running:
            raise _ended(f"node {self.name}", self._child)

    def is_active(self) -> bool:
        """Ask ``/streaming/isFTActive``; false also when nobody answers."""
        status, _ = fetch(self._monitor_port, "/streaming/isFTActive", HTTP_TIMEOUT)
        return status == http.HTTPStatus.OK

    def handover_age(self) -> float | None:
        """Return how many seconds ago the owner before it was asked to hand over."""
        return handover_age(fetch(self._monitor_port, "/streaming/ftz", HTTP_TIMEOUT))

    def state(self) -> str:
        """Return ``state`` of ``/streaming/serverz``; empty when nobody answers."""
        status, body = fetch(self._monitor_port, "/streaming/serverz", HTTP_TIMEOUT)
        return str(json.loads(body)["state"]) if status == http.HTTPStatus.OK else ""

    @property
    def has_stepped_down(self) -> bool:
        """Tell whether it has ended to be started again by its supervisor."""
        child = self._child
        return child is not None and not child.running and child.returncode == STEPPED_DOWN

    def leads(self) -> bool:
        """Ask ``/streaming/ftz`` whether it leads a cluster; false also when nobody answers."""
        status, body = fetch(self._monitor_port, "/streaming/ftz", HTTP_TIMEOUT)
        said = json.loads(body) if status == http.HTTPStatus.OK else {}
        return said.get("role") == "Leader" and bool(said.get("serving"))

    def last_lines(self) -> list[str]:
        """Return the end of its log."""
        return self._child.last_lines() if self._child is not None else []


class Command:
    """One ``ftstanctl ft``, or another ``noun``, asked through the NATS server of ``node``.

    What it says goes to ``log``.
    """

    def __init__(self, verb: str, *words: str, node: Node, log: str, noun: str = "ft") -> None:
        self.log = log
        self._noun = noun
        self._verb = verb
        group = ("--group", GROUP) if noun == "ft" else ()
        where = ["--server", node.url, "--cluster", CLUSTER, *group]
        asked = [sys.executable, "-m", "ftstan.cli.ctl", noun, verb, *where, *words]
        self._child = Child(asked, log, directory=_ROOT)

    def done(self) -> bool:
        """Tell whether it has ended.

        Raises :class:`DemoError` with its own words when it did not succeed.
        """
        if self._child.running:
            return False
        if self._child.returncode != 0:
            said = " ".join(self.said())
            status = self._child.returncode
            raise DemoError(
                f"ftstanctl {self._noun} {self._verb} ended with status {status}: {said}"
            )
        return True

    @property
    def status(self) -> int | None:
        """Its exit status, ``None`` while it runs."""
        return self._child.returncode

    def said(self) -> list[str]:
        """Return what it printed."""
        return self._child.last_lines()

    def end(self) -> None:
        """End it if it still runs, and reap it."""
        self._child.stop(STOP_TIMEOUT)


class Script:
    """One of the Node.js clients: obeys commands on its standard input, tells its counters on its
    standard output.
    """

    def __init__(self, name: str, script: str, log: str, flags: dict[str, str]) -> None:
        self.name = name
        self.log = log
        self.counters: dict[str, int | str] = {}
        words = ["node", os.path.join(_HERE, script)]
        for flag, value in flags.items():
            words += [f"--{flag}", value]
        try:
            self._child = Child(words, log, directory=_ROOT, piped=True)
        except FileNotFoundError as error:
            raise DemoError(
                "there is no Node.js: node was not found on PATH", hint="install Node.js >= 16"
            ) from error
        self._listener = threading.Thread(target=self._listen, name=f"{name} counters", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self._child.stdout:
            self.counters = json.loads(line)

    def count(self, name: str) -> int:
        """Return a counter as last told, 0 before the first line."""
        return int(self.counters.get(name, 0))

    def text(self, name: str) -> str:
        """Return a text as last told, empty before the first line."""
        return str(self.counters.get(name, ""))

    def command(self, words: str) -> None:
        """Send one command; a client that has ended is told nothing."""
        try:
            self._child.stdin.write(words.encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return

    @property
    def running(self) -> bool:
        """True until the process has ended."""
        return self._child.running

    def require_alive(self) -> None:
        """Raise :class:`DemoError` when the client has ended on its own."""
        if not self._child.running:
            raise _ended(f"the {self.name}", self._child)

    def stop(self) -> None:
        """Have it sync its ledger and end."""
        if self._child.running:
            self.command("stop")
            self._child.wait(STOP_TIMEOUT)
        self.end()

    def end(self) -> None:
        """End it without ceremony, and take in what it still told."""
        if self._child.running:
            self._child.signal(signal.SIGTERM)
            self._child.wait(STOP_TIMEOUT)
        self._listener.join(STOP_TIMEOUT)
        self._child.stop(STOP_TIMEOUT)

    def last_lines(self) -> list[str]:
        """Return the end of what it wrote to its standard error, as a rule nothing."""
        return self._child.last_lines()
