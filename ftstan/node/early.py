"""The first moments of a server: what is done before most of the program is loaded.

The NATS server is started. A server that stands alone also has its link listen for clients as soon
as there is a port: what they ask from then on lies in the link until this server is ready, so that
a client which finds the port open does not ask in vain. The listener in front of the NATS server
greets nobody before. A NATS server without one cannot be made to promise that: it may serve a
client that was as quick as the link before it has read what the link said.

Everything here runs on the main thread, one step after the other, and is imported with as little as
that needs: nothing else is to be done between the first byte that a client can send and the
subscription that takes it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import TYPE_CHECKING, Final, Self

from ftstan.base.clock import SystemClock
from ftstan.base.errors import FtstanError
from ftstan.broker.constants import SID_CONNECT
from ftstan.front.listener import LOOPBACK
from ftstan.nats.credentials import own, read_key
from ftstan.nats.direct_road import behind, link_options, open_front, why_not
from ftstan.nats.generated import child_options
from ftstan.nats.launch import client_url, launch
from ftstan.nats.link import Link, UnreachableError
from ftstan.nats.tls import is_demanded
from ftstan.nats.url import parse_url
from ftstan.node.duplicate_cluster_check import Guard
from ftstan.wire.nuid import Nuid
from ftstan.wire.subjects import Subjects

if TYPE_CHECKING:
    from types import TracebackType

    from ftstan.config.options import ServerOptions
    from ftstan.front.listener import Front
    from ftstan.nats.generated import NatsServerOptions
    from ftstan.nats.launch import Launched
    from ftstan.nats.url import NatsUrl

#: From its gate to its port the NATS server takes a millisecond or two.
_PAUSE_S: Final = 0.00005
#: How long the NATS server may have waited with a line and no open port: what it waits with is then
#: another line than the one that it is held at. A crowded machine lets it stand for a while.
_STUCK_S: Final = 5.0
#: For the NATS server to take what we said. Reading its greeting meanwhile would wake this process
#: on its processor, and another of its threads could serve a client before us.
_UNDISTURBED_S: Final = 0.004
_LOOK_MS: Final = 50
_PORT_WITHIN_S: Final = 30.0
_CONNECT_WITHIN_S: Final = 10.0
#: Behind these other servers may answer for our clients, and it takes a while until they are heard.
_BEHIND: Final = ("leafnodes", "gateway")
_NO_HEADERS: Final = "no_header_support"
#: Of these it tells before it listens for clients.
_TALKATIVE: Final = (
    "jetstream",
    "websocket",
    "mqtt",
    "profile",
    "prof_port",
    "operator",
    "resolver",
)


def link_name(cluster_id: str, role: str) -> str:
    """The name of a connection of ours in NATS."""
    return f"_NSS-{cluster_id}-{role}"


class Early:
    """What was begun, for the node that goes on with it. As a context it ends what nobody took.

    Errors are left to the node, which does again what is missing, and tells what is wrong with it.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._launched: Launched | None = None
        self._front: Front | None = None
        self._link: Link | None = None
        self.discovery = ""
        """Where the link listens for clients; empty if there is no link."""

    def __enter__(self) -> Self:
        """Begin, on the thread that will end the NATS server."""
        options = self._options
        try:
            if not options.nats_servers:
                with contextlib.suppress(FtstanError, OSError):
                    self._launched = launch(self._child_options())
                    if _is_alone(options):
                        self._listen(options, self._launched)
        except BaseException:
            self._end()
            raise
        return self

    def _child_options(self) -> NatsServerOptions:
        """What the NATS server is told: another port, if ours is in front of it."""
        options = self._options
        told = child_options(options)
        if not why_not(options):
            with contextlib.suppress(OSError):  # of a port that is taken the NATS server tells
                self._front = open_front(options)
                return behind(told, self._front)
        return told

    def _listen(self, options: ServerOptions, launched: Launched) -> None:
        cluster_id = options.cluster_id
        discovery = Subjects.for_cluster(cluster_id, options.discover_prefix).discovery
        clock = SystemClock()
        guard = Guard(Nuid(), discovery, cluster_id)
        lines = guard.lines + b"SUB %b %d\r\n" % (discovery.encode(), SID_CONNECT)
        login = own(options)
        if self._front is not None:
            try:
                login = link_options(login, options.nats)
            except FtstanError:  # the node tells of it
                return
        if login.user or login.password or login.token or read_key(login):
            # Until our NATS server has named its ports, a stranger may hold one: it is not to be
            # shown a login. The node connects later.
            return
        gate = _Gate(launched, clock)
        front = self._front
        eager = front is None and not (
            options.nats.tls.enabled or is_demanded(login) or _NO_HEADERS in options.nats.settings
        )
        if eager and options.nats.port > 0 and not _prints_more(options):
            launched.output.hold(gate.goes_on)
        gate.open()
        port = gate.port(front.server_port if front is not None else options.nats.port)
        if not port:
            return
        url = parse_url(client_url(LOOPBACK if front is not None else options.nats.host, port))
        link = Link([url], name=link_name(cluster_id, "general"), clock=clock, options=login)
        if front is not None:
            link.through = front.attach
        if not (_connect_first(link, lines, gate, url) if eager else _connect(link, lines, gate)):
            return
        try:
            if link.info.get("server_name") == launched.name and guard.size <= link.max_payload:
                link.leftover = guard.refuse_duplicates(link, clock)
                self._link = link
                self.discovery = discovery
        finally:
            if self._link is None:
                link.close()
        if front is not None and self._link is not None:
            # Before this nobody is greeted, and whatever a client asks from here on is heard.
            front.be_direct(on=True)
            front.serve(on=True)
            front.listen()

    def take_child(self) -> Launched | None:
        """The NATS server that was started; who takes it ends it."""
        launched = self._launched
        self._launched = None
        return launched

    def take_front(self) -> Front | None:
        """The listener in front of that server, if there is one; who takes it stops it."""
        front = self._front
        self._front = None
        return front

    def take_link(self) -> Link | None:
        """The link that listens for clients, on a NATS server where nobody else does."""
        link = self._link
        self._link = None
        return link

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        if (link := self.take_link()) is not None:
            link.close()
        if (launched := self.take_child()) is not None:
            launched.output.close()
            launched.process.kill()
            launched.process.wait()
            launched.remove_files()
        if (front := self.take_front()) is not None:
            front.stop()


class _Gate:
    """When to try the port: from when the NATS server goes about opening it."""

    def __init__(self, launched: Launched, clock: SystemClock) -> None:
        self._launched = launched
        self._clock = clock
        self._end = clock.mono() + _PORT_WITHIN_S
        self._stuck_at: float | None = None

    def open(self) -> None:
        """Let the NATS server go about it, and return when it does."""
        fd = self._launched.open_gate()
        if fd >= 0:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            while not poll.poll(_LOOK_MS) and self.goes_on():
                pass

    def port(self, wanted: int) -> int:
        """The port: the one that is ``wanted``, or any that was taken; 0 if there will be none."""
        while wanted <= 0 and self.wait():
            wanted = self._launched.ports().get("nats", 0)
        return max(wanted, 0)

    def release(self) -> None:
        """Let the NATS server serve whoever has come, and leave it alone while it begins."""
        self._launched.output.release()
        time.sleep(_UNDISTURBED_S)

    def wait(self) -> bool:
        """Return when it is time for a try; false if there will be no port."""
        time.sleep(_PAUSE_S)
        output = self._launched.output
        if output.is_full:
            now = self._clock.mono()
            if self._stuck_at is None:
                self._stuck_at = now + _STUCK_S
            elif now > self._stuck_at:
                # Something else than the port is between us, perhaps an error that wants to be
                # told.
                output.release()
        return self.goes_on()

    def goes_on(self) -> bool:
        """Whether there may still be a port."""
        return self._launched.process.poll() is None and self._clock.mono() < self._end


def _connect(link: Link, lines: bytes, gate: _Gate) -> bool:
    """Have ``link`` connect as soon as it can; returns whether it did."""
    while gate.wait():
        with contextlib.suppress(UnreachableError):  # not open yet
            link.connect(_CONNECT_WITHIN_S, lines)
            return True
    return False


def _connect_first(link: Link, lines: bytes, gate: _Gate, url: NatsUrl) -> bool:
    """The same, where all may be said before the NATS server has said a word.

    A client that finds the port open in the same moment is greeted beside us: the less time it has
    for that, the surer it is that we are heard first. So nothing else is done in between.
    """
    hello = link.hello(lines)
    # Raises ``OSError`` for a name that nobody knows, which the NATS server tells as well.
    family, *_, address = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)[0]
    while gate.wait():
        sock = socket.socket(family)
        try:
            sock.connect(address)
            sock.sendall(hello)
        except OSError:  # not open yet
            sock.close()
            continue
        gate.release()
        with contextlib.suppress(UnreachableError):
            link.connect(_CONNECT_WITHIN_S, lines, opened=sock)
            return True
    return False


def _prints_more(options: ServerOptions) -> bool:
    """Whether the NATS server has more to say before it listens than ``HeldOutput`` expects."""
    nats = options.nats
    return nats.debug or nats.trace or any(key in nats.settings for key in _TALKATIVE)


def _is_alone(options: ServerOptions) -> bool:
    """Whether nobody but this server can answer for clients of its NATS server."""
    nats = options.nats
    return not (
        options.ft_group
        or options.clustered
        or options.partitioning
        or nats.cluster_listen
        or any(key in nats.settings for key in _BEHIND)
    )
