"""Server processes for tests: real ftstan and nats-server children on loopback, each ended by its
own pid.

A ``Stage`` owns the children and the files of one test; leaving it ends every child, whatever
happened before. Waits have a generous limit and fail with the end of the child's log; nothing here
asserts how long something took.
"""

from __future__ import annotations

import contextlib
import functools
import http
import json
import os
import re
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from ftstan.drill import ports, processes
from ftstan.drill.processes import PATIENCE_S, alive, children, fetch, nats_words, until
from tests.forkserver import ForkServer
from tests.uncoded import uncoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import prometheus_client

__all__ = ["PATIENCE_S", "alive", "children", "until"]

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
CLUSTER = "test-cluster"
GROUP = "test-group"

READY = "STREAM: Streaming Server is ready"
STANDING_BY = "STREAM: Starting in standby mode"

NO_AUTHORITIES = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
"""What a child of a test trusts on the Internet: nobody. An HTTP library reads the hundred and
fifty authorities of the machine whenever it is imported, a tenth of what a server's start takes.
"""

_QUIET_S = 1.5
"""Longer than a nats-server waits before it tries a route again."""
_GIVEN: deque[int] = deque(maxlen=700)
"""Ports that were given out last: most of them have no server yet, or one that may come back."""
_STAMP = re.compile(r"\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} (.*)")


def free_ports(count: int) -> list[int]:
    """``count`` different loopback ports that nobody listens on now, and that no other test of this
    worker just got.

    From below the range that outgoing connections take theirs from: a server that was killed must
    get its port back.
    """
    # Workers of one test run each have a range of their own: a port is free until its server
    # starts. All are below those that listeners choose for the NATS servers behind them.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    # Of a run beside another one: how many workers that has.
    worker = (worker + int(os.environ.get("FTSTAN_OTHER_WORKERS", "0"))) % 8
    found = ports.free_ports(count, 16_000 + 1_400 * worker, 1_400, but=_GIVEN)
    _GIVEN.extend(found)
    return found


def wait_for_mesh(servers: Sequence[Server]) -> None:
    """Wait until the embedded NATS servers are one network, and stay connected as they are.

    While they find each other they close connections that they have twice, and what is on such a
    one is lost.
    """
    # Between any two: three connections that share the accounts, and one for the system's.
    others = len(servers) - 1
    last: list[list[tuple[str, int]]] = []
    since = time.monotonic()

    def settled() -> bool:
        nonlocal last, since
        now = [server.routes() for server in servers]
        whole = all(
            len(one) == 4 * others and len({remote for remote, _ in one}) == others for one in now
        )
        if now != last or not whole:
            last = now
            since = time.monotonic()
        return time.monotonic() - since > _QUIET_S

    until(settled, f"a mesh of {len(servers)} NATS servers")


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    until(lambda: not alive(pid), f"the end of process {pid}")


class Child(processes.Child):
    """A child of a test: it is killed in the end."""

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        piped: bool = False,
    ) -> None:
        if environment is None:
            environment = os.environ | NO_AUTHORITIES
        super().__init__(words, log, environment, directory=ROOT, piped=piped)

    def status(self, within: float = PATIENCE_S) -> int:
        """Wait for its end, seconds; the exit status, negative for a signal."""
        ended = self.wait(within)
        assert ended, f"{self.log.name}: still running\n{self.tail()}"
        assert self.returncode is not None
        return self.returncode

    def lines(self) -> list[str]:
        """What it has written so far as lines, without pid, time and code."""
        return [
            found[1] if (found := _STAMP.fullmatch(line)) is not None else line
            for line in uncoded(self.text()).splitlines()
        ]

    def end(self) -> None:
        """End it whatever state it is in, and what it started."""
        below = children(self.pid) if self.running else []
        # A stopped process cannot hear SIGTERM; a test that wanted a clean stop has already had it.
        self.kill()
        self.close()
        for pid in below:
            wait_until_gone(pid)


_PROGRAM = "ftstan.cli.server"
_COMMAND = [sys.executable, "-m", _PROGRAM]


@functools.cache
def _forks() -> ForkServer:
    """What servers of this worker are forked from."""
    return ForkServer(os.environ | NO_AUTHORITIES, ROOT)


class Server(Child):
    """An ftstan process. ``port``: where clients connect; ``store``: its datastore.

    It is forked from one that has loaded the program, if it has the environment of all tests,
    nothing stands before its command, and it need not be ``executed``.
    """

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        *,
        port: int,
        monitor: int,
        store: Path,
        environment: Mapping[str, str] | None = None,
        executed: bool = False,
    ) -> None:
        self._is_executed = executed
        super().__init__(words, log, environment)
        self.port = port
        self.store = store
        self.monitor = monitor
        self.token = ""
        """What its pages ask for, if they do."""

    def _begin(
        self,
        environment: Mapping[str, str] | None,
        directory: str | Path | None,
        *,
        piped: bool,
        session: bool,
    ) -> processes.Process:
        common = os.environ | NO_AUTHORITIES
        if self._is_executed or self.words[:3] != _COMMAND or environment != common:
            return super()._begin(environment, directory, piped=piped, session=session)
        return _forks().start(self.words[3:], self.log, common, ROOT)

    @property
    def url(self) -> str:
        """Where the monitoring pages are."""
        return f"http://{HOST}:{self.monitor}"

    def get(self, path: str) -> tuple[int, bytes]:
        """A page of the monitoring port: status and body; status 0 when nobody answers."""
        return fetch(self.monitor, path, PATIENCE_S, token=self.token)

    def serverz(self) -> dict[str, Any]:
        status, body = self.get("/streaming/serverz")
        assert status == http.HTTPStatus.OK, self.tail()
        page: dict[str, Any] = json.loads(body)
        return page

    def metrics(self) -> dict[str, prometheus_client.Metric]:
        """The families of ``/metrics`` by name."""
        status, body = self.get("/metrics")
        assert status == http.HTTPStatus.OK, self.tail()
        return {family.name: family for family in text_string_to_metric_families(body.decode())}

    def routes(self) -> list[tuple[str, int]]:
        """Connections of the embedded NATS server to others: whose, and their numbers."""
        status, body = self.get("/routez")
        if status != http.HTTPStatus.OK:
            return []
        return sorted((route["remote_id"], route["rid"]) for route in json.loads(body)["routes"])

    @property
    def ft_status(self) -> int:
        """What a load balancer sees: 200 from the active, 204 from a standby, 0 when nobody
        answers.
        """
        return self.get("/streaming/isFTActive")[0]

    def wait_until_active(self) -> None:
        def active() -> bool:
            assert self.running, f"{self.log.name} ended\n{self.tail()}"
            return self.ft_status == http.HTTPStatus.OK

        until(active, f"{self.log.name} to become active\n{self.tail()}")

    def wait_until_standing_by(self) -> None:
        """Wait until it would take over.

        It says that it stands by before it is connected to NATS.
        """

        def ready() -> bool:
            assert self.running, f"{self.log.name} ended\n{self.tail()}"
            return self.get("/standby")[0] == http.HTTPStatus.OK

        until(ready, f"{self.log.name} to stand by\n{self.tail()}")


class Stage:
    """The children of one test and their files below ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "store"
        self._children: list[Child] = []

    def run(
        self, name: str, words: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start any command."""
        return self.adopt(Child(words, self.directory / f"{name}.log", environment))

    def adopt(self, child: Child) -> Child:
        self._children.append(child)
        return child

    def server(
        self,
        name: str,
        *words: str,
        port: int = 0,
        monitor: int = 0,
        cluster: str = CLUSTER,
        wrap: Sequence[str] = (),
        program: Sequence[str] = (_PROGRAM,),
        executed: bool = False,
    ) -> Server:
        """Start ftstan with ``words`` behind the usual ones.

        ``wrap`` stands before the whole command. ``program``: another module that runs it, and what
        goes before its words. ``executed``: ``/proc`` shows it.

        It has an embedded nats-server unless the words bring ``-ns``. Does not wait for anything.
        """
        free = free_ports(2)
        port = port or free[0]
        monitor = monitor or free[1]
        command = [*wrap, sys.executable, "-m", *program, "-cid", cluster]
        command += ["-a", HOST, "-p", str(port), "-m", str(monitor), *words]
        server = Server(
            *(command, self.directory / f"{name}.log"),
            port=port,
            monitor=monitor,
            store=self.store,
            executed=executed,
        )
        self.adopt(server)
        return server

    def file_server(self, name: str, *words: str, **more: Any) -> Server:
        """The same on the file store."""
        return self.server(name, "-store", "file", "-dir", str(self.store), *words, **more)

    def member(self, name: str, *words: str, **more: Any) -> Server:
        """The same as a member of the group."""
        return self.file_server(name, "-ft_group", GROUP, *words, **more)

    def go_member(self, name: str, nats: Nats, *words: str) -> Child:
        """Start a member of the group that keeps the original's rules
        (``tests/oracle/gopeer.py``).
        """
        command = [
            sys.executable,
            "-m",
            "tests.oracle.gopeer",
            "--dir",
            str(self.store),
            "--nats",
            nats.url,
        ]
        return self.run(name, [*command, "--cluster", CLUSTER, "--group", GROUP, *words])

    def routed_pair(self, *words: str, token: str = "") -> tuple[Server, Server]:
        """Two members with embedded nats-servers that route to each other; the first is active.

        ``token``: what their pages ask for.
        """
        route_a, route_b = (f"nats://{HOST}:{port}" for port in free_ports(2))
        words += ("-monitor_token", token) if token else ()
        a = self.member("a", "-cluster", route_a, "-routes", route_b, *words)
        a.token = token
        a.wait_until_active()
        b = self.member("b", "-cluster", route_b, "-routes", route_a, *words)
        b.token = token
        b.wait_until_standing_by()
        wait_for_mesh([a, b])
        return a, b

    def pair_on(self, nats: Nats, *words: str) -> tuple[Server, Server]:
        """Two members on one external nats-server, with ``words`` behind the usual ones.

        The first is active.
        """
        a = self.member("a", "-ns", nats.url, *words)
        a.wait_until_active()
        b = self.member("b", "-ns", nats.url, *words)
        b.wait_until_standing_by()
        return a, b

    def nats(self, name: str = "nats", port: int = 0, settings: str = "") -> Nats:
        """Start an external nats-server, with lines of its configuration file or none, and wait
        until it answers.
        """
        words: list[str] = []
        if settings:
            file = self.directory / f"{name}.conf"
            file.write_text(settings)
            words = ["-c", str(file)]
        nats = Nats(self.directory / f"{name}.log", port or free_ports(1)[0], words)
        self.adopt(nats)
        nats.wait_for("Server is ready")
        return nats

    def end(self) -> None:
        """End every child, newest first.

        Then show what they wrote, for the report of a test that failed.
        """
        with contextlib.ExitStack() as stack:
            for child in self._children:
                stack.callback(child.end)
        for child in self._children:
            print(child.tail())


class Nats(Child):
    """An external nats-server."""

    def __init__(self, log: Path, port: int, words: Sequence[str] = ()) -> None:
        super().__init__(nats_words(port, *words), log)
        self.port = port

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"
