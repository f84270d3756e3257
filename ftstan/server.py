"""One node's life: options, NATS, lock, store, broker, serve, stop.

Runs on the control thread (asyncio) and never touches storage: whatever may block is posted to the data plane. Exit
statuses are those that operators know: 0 after SIGINT, 143 after SIGTERM, 1 when the start failed, 75 when the store
belongs to somebody else or can not be written (come back as a standby).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import select
import signal
import sys
from typing import TYPE_CHECKING, NoReturn, TypeVar

from ftstan import COMPATIBLE_VERSION, log
from ftstan.broker.broker import Broker, BrokerOptions
from ftstan.broker.constants import SID_INBOX
from ftstan.broker.dedup import Window
from ftstan.clock import Clock, SystemClock
from ftstan.config.banner import READY, effectless_lines, recovered_line, runtime_version, starting_lines, store_lines
from ftstan.dataplane import DataPlane, shown
from ftstan.errors import (
    FencedError,
    FtstanError,
    LockBusyError,
    NatsError,
    RecoveryError,
    StoreError,
)
from ftstan.ft.access import FileAccess
from ftstan.group import FtGroup
from ftstan.monitor.http import Monitor, format_time, format_uptime
from ftstan.nats.embedded import NatsServerChild
from ftstan.nats.generated import NatsServerOptions
from ftstan.nats.link import Link
from ftstan.serving import Serving
from ftstan.stores import registry
from ftstan.stores.interface import ServerInfo, StoreContext
from ftstan.wire import messages
from ftstan.wire.frames import Parser
from ftstan.wire.nuid import Nuid
from ftstan.wire.subjects import Subjects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ftstan.bridge import Ahead
    from ftstan.config.options import ServerOptions
    from ftstan.ft.ownership import StoreOwner
    from ftstan.stores.interface import StoreAccess

T = TypeVar("T")

EXIT_FENCED = 75
_EXIT_TERM = 143
_LOCK_PATIENCE_S = 5.0
_LOCK_RETRY_S = 0.1
_GUARD_S = 0.25
_READY_S = 10.0
_STOP_S = 60.0
#: A node whose storage fails so soon after it took over would, restarted at once, only use up epochs.
_SOON_S = 60.0
_PAUSE_S = 5


def run(options: ServerOptions) -> int:
    """Run one node until a signal ends it; returns the exit status. Raises ``FtstanError`` when the start fails."""
    try:
        return asyncio.run(Node(options).main())
    except FencedError as error:
        # During recovery or while stopping, too: a supervisor starts it again as a standby.
        log.stream.fatal(error.text)
        return EXIT_FENCED


class Node:
    """What one process is: a standalone server, or a member of a group."""

    def __init__(self, options: ServerOptions, clock: Clock | None = None) -> None:
        self.options = options
        self.clock = clock or SystemClock()
        self.nuid = Nuid()
        self.server_id = self.nuid.next()
        self.state = "STANDALONE"
        self.plane = DataPlane(self._plane_ended)
        self._access: StoreAccess | None = None
        self.owner: StoreOwner | None = None
        """The right to the directory of a FILE store; a group needs one."""
        self.stop_signal = 0
        self._exit_status = 0
        self.stopping = asyncio.Event()
        self._failure: FtstanError | None = None
        self._child: NatsServerChild | None = None
        self._monitor = Monitor(self)
        self._group: FtGroup | None = None
        self._started_ns = self.clock.wall_ns()
        self._started = self.clock.mono()
        self._counts: dict[str, int] = {}
        self._serving_since = 0.0
        self.link: Link | None = None
        """The data link; it belongs to the data plane's thread."""
        self.unbridged = 0
        """Publishes that arrived during hand-overs and were not answered."""

    # ---- life ----------------------------------------------------------------------------------------------------

    async def main(self) -> int:
        """Start, serve, stop."""
        for line in starting_lines(self.options.cluster_id, self.server_id):
            log.stream.info(line)
        for line in effectless_lines(self.options):
            log.stream.warning(line)
        _raise_file_limit()
        self._handle_signals()
        try:
            await self._start()
            await self.stopping.wait()
            if self._failure is not None:
                raise self._failure
            return await self._stop()
        finally:
            await self._end_children()

    async def _start(self) -> None:
        options = self.options
        # On the data plane's thread: opening the directory may block on storage like everything else in it.
        self.plane.start()
        make = registry.load(options.store)
        self._access = await self.call(lambda: make(StoreContext(options, self.server_id, self.clock)))
        if isinstance(self._access, FileAccess):
            self.owner = self._access.owner
        urls = await self._start_nats()
        if options.nats.http_port:
            port = await self._monitor.start(options.nats.host, options.nats.http_port)
            if self._child is not None:
                log.nats.info(f"Starting http monitor on {options.nats.host}:{port}")
        nats = options.nats
        self.link = Link(
            urls, name=self._name("general"), user=nats.user, password=nats.password, token=nats.token, clock=self.clock
        )
        if options.ft_group:
            self._group = FtGroup(self, urls)
            await self._group.start()
            return
        await self.call(self._connect_first)
        await self._lock_standalone(self._access)
        await self.call(self._access.activate)
        await self.serve()

    async def _start_nats(self) -> list[str]:
        options = self.options
        if options.nats_servers:
            return list(options.nats_servers)
        nats = options.nats
        self._child = NatsServerChild(
            NatsServerOptions(
                cluster_id=options.cluster_id,
                host=nats.host,
                port=nats.port,
                cluster_listen=nats.cluster_listen,
                routes=nats.routes,
                user=nats.user,
                password=nats.password,
                token=nats.token,
                debug=nats.debug,
                trace=nats.trace,
            )
        )
        await self._child.start()
        return [self._child.client_url]

    def _connect_first(self) -> None:
        assert self.link is not None
        self.link.connect(2.0)

    async def _lock_standalone(self, access: StoreAccess) -> None:
        """A standalone server takes the lock too: two servers on one directory destroy it."""
        deadline = self.clock.mono() + _LOCK_PATIENCE_S
        lock = access.lock()
        while True:
            try:
                await self.call(lock.acquire)
            except LockBusyError as error:
                if self.clock.mono() >= deadline or self.stopping.is_set():
                    holder = await self.call(access.holder)
                    raise RecoveryError(
                        f"{access.place} is in use by {holder or 'another server'}",
                        hint="stop that server first, or start this one with -ft_group to stand by",
                    ) from error
                await asyncio.sleep(_LOCK_RETRY_S)
            else:
                return

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run something on the data plane's thread."""
        return asyncio.wrap_future(self.plane.call(function))

    async def serve(self, ahead: Callable[[], Awaitable[Ahead | None]] | None = None) -> None:
        """Recover and open the server; the store is ours. Raises ``FtstanError``.

        ``ahead`` is asked, once the store is recovered, for what has come before.
        """
        recovered = await self.call(self._recover)
        came = await ahead() if ahead is not None else None
        await self.call(lambda: self._open(recovered, came))
        for _ in range(round(_READY_S / 0.01)):
            serving = self.plane.serving
            if serving is not None and serving.ready:
                break
            await asyncio.sleep(0.005)
        for line in store_lines(self.options):
            log.stream.info(line)
        log.stream.info(READY)

    # ---- on the data plane's thread ------------------------------------------------------------------------------

    def _recover(self) -> Serving:
        options = self.options
        log.stream.info("Recovering the state...")
        self._serving_since = self.clock.mono()
        assert self._access is not None
        store = self._access.open()
        recovered = store.recover()
        info = recovered.info
        if info is not None and info.cluster_id != options.cluster_id:
            raise RecoveryError(
                f'cluster ID "{options.cluster_id}" does not match recovered value of "{info.cluster_id}"',
                hint="give -cid the value that this datastore was made with",
            )
        subjects = Subjects.for_cluster(options.cluster_id)
        if info is None:
            store.set_server_info(_info(options.cluster_id, subjects))
        else:
            known = Subjects(
                discovery=info.discovery,
                publish=info.publish,
                subscribe=info.subscribe,
                unsubscribe=info.unsubscribe,
                sub_close=info.sub_close or subjects.sub_close,
                close=info.close,
                acks_subs=info.acks_subs,
            )
            if not info.sub_close:
                store.set_server_info(_info(options.cluster_id, known))
            subjects = known
        channel_limits = options.limits.channel
        broker = Broker(
            store,
            subjects,
            BrokerOptions(
                hb_interval=options.hb_interval,
                hb_timeout=options.hb_timeout,
                hb_fail_count=options.hb_fail_count,
                max_channels=options.limits.max_channels,
                limits=channel_limits,
            ),
            self.nuid,
        )
        if options.dedup_window:
            broker.window = Window(options.dedup_window, recovered.remembered)
        broker.recover(recovered, self.clock.wall_ns(), round(self.clock.mono() * 1e9))
        log.stream.info(recovered_line(len(recovered.channels) if info is not None else None))
        assert self.link is not None
        serving = Serving(store, broker, self.link, self.clock, self._name("general"))
        if not options.ft_group:
            self._guard(broker)
        return serving

    def _open(self, serving: Serving, ahead: Ahead | None) -> None:
        with contextlib.suppress(NatsError):
            # In a group NATS may be away for a moment; the loop goes on trying.
            serving.open_link(ahead)
        self.plane.serving = serving

    def _guard(self, broker: Broker) -> None:
        """Refuse to serve a cluster id that another server answers for (``docs/compat/protocol.md``, recovery)."""
        link = self.link
        assert link is not None
        inbox = b"_INBOX." + self.nuid.next().encode()
        request = messages.encode(
            messages.ConnectRequest(
                client_id=self.options.cluster_id.encode(), heartbeat_inbox=b"_INBOX." + self.nuid.next().encode()
            )
        )
        discovery = broker.subjects.discovery.encode()
        link.send(
            b"SUB %b %d\r\nPUB %b %b %d\r\n%b\r\n" % (inbox, SID_INBOX, discovery, inbox, len(request), request), 2.0
        )
        answer = _first_message(link, self.clock, _GUARD_S)
        link.send(b"UNSUB %d\r\n" % SID_INBOX, 2.0)
        if answer is None:
            log.stream.debug("Did not detect another server instance")
            return
        with contextlib.suppress(FtstanError):
            response = messages.parse(messages.ConnectResponse, answer)
            if response.close_requests:
                close = messages.encode(messages.CloseRequest(client_id=self.options.cluster_id.encode()))
                link.send(b"PUB %b %d\r\n%b\r\n" % (response.close_requests, len(close), close), 2.0)
        raise NatsError(
            f'discovered another streaming server with cluster ID "{self.options.cluster_id}"',
            hint="stop the other server, or give this one another -cid",
        )

    def _plane_ended(self, error: BaseException) -> None:
        """The data plane can not go on: nothing more is sent or written."""
        if isinstance(error, StoreError) and self.clock.mono() - self._serving_since < _SOON_S:
            pause_and_end(shown(error), EXIT_FENCED, _PAUSE_S)
        end_process(f"{shown(error)}", EXIT_FENCED if isinstance(error, FtstanError) else 2)

    # ---- stopping ------------------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.request_stop, number)
        loop.add_signal_handler(signal.SIGUSR1, log.reopen)
        loop.add_signal_handler(
            signal.SIGHUP, log.stream.warning, "Reload: not supported by this version of ftstan (planned)"
        )

    def request_stop(self, number: int) -> None:
        """Stop cleanly."""
        self.stop_signal = number
        self.stopping.set()

    def request_handover(self, successor: str) -> None:
        """Stop cleanly in favour of ``successor``, and end as a node that stands by when it is started again."""
        log.stream.info(f"ft: switchover: handing over to server {successor}")
        self._exit_status = EXIT_FENCED
        self.stopping.set()

    def fenced(self, error: FencedError) -> NoReturn:
        """The store belongs to somebody else: out at once, with one line that says why."""
        end_process(error.text, EXIT_FENCED)

    def fail(self, error: FtstanError) -> None:
        """End with this error."""
        self._failure = error
        self.stopping.set()

    async def _stop(self) -> int:
        log.stream.info("Shutting down.")
        if self._group is not None:
            await self._group.hand_over()
        self.state = "SHUTDOWN"
        if self._group is not None:
            await self._group.stopping()
        released = False
        try:
            async with asyncio.timeout(_STOP_S):
                released = await self.call(self._stop_serving)
        except TimeoutError:
            end_process(f"storage has not answered for {_STOP_S:g}s while stopping", EXIT_FENCED)
        if self._group is not None:
            await self._group.stopped(released=released)
        return _EXIT_TERM if self.stop_signal == signal.SIGTERM else self._exit_status

    def _stop_serving(self) -> bool:
        """Close the store and give the lock back; returns whether this node was the owner."""
        serving, self.plane.serving = self.plane.serving, None
        if serving is not None:
            try:
                serving.stop()
            except StoreError as error:
                log.stream.error(f"{error.text}; what was acknowledged is safe")
        active = self.owner is not None and serving is not None
        if self._access is not None:
            self._access.close()
        if self.link is not None:
            self.link.close()
        return active

    async def _end_children(self) -> None:
        with contextlib.suppress(NatsError):
            await self._monitor.stop()
        if self._group is not None:
            await self._group.close()
        if self._child is not None:
            await self._child.stop()

    # ---- views ---------------------------------------------------------------------------------------------------

    async def serverz(self) -> dict[str, object]:
        """What ``/streaming/serverz`` shows (``docs/compat/monitoring.md``)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.25):
                self._counts = await self.call(self._count)
        now = self.clock.wall_ns()
        serving = self.plane.serving is not None
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return {
            "cluster_id": self.options.cluster_id if serving else "",
            "server_id": self.server_id,
            "version": COMPATIBLE_VERSION,
            "go": runtime_version(),
            "state": self.state,
            "now": format_time(now),
            "start_time": format_time(self._started_ns),
            "uptime": format_uptime(self.clock.mono() - self._started),
            "open_fds": len(os.listdir("/proc/self/fd")),
            "max_fds": soft,
            **_NO_COUNTS,
            **self._counts,
        }

    def _count(self) -> dict[str, int]:
        serving = self.plane.serving
        return serving.broker.counts() if serving is not None else {}

    def is_ft_active(self) -> bool:
        """Whether this node is the active one and serves."""
        serving = self.plane.serving
        return self.state == "FT_ACTIVE" and serving is not None and serving.ready

    def _name(self, suffix: str) -> str:
        return f"_NSS-{self.options.cluster_id}-{suffix}"


_NO_COUNTS = {
    "clients": 0,
    "subscriptions": 0,
    "channels": 0,
    "total_msgs": 0,
    "total_bytes": 0,
    "in_msgs": 0,
    "in_bytes": 0,
    "out_msgs": 0,
    "out_bytes": 0,
}


def _info(cluster_id: str, subjects: Subjects) -> ServerInfo:
    return ServerInfo(
        cluster_id=cluster_id,
        discovery=subjects.discovery,
        publish=subjects.publish,
        subscribe=subjects.subscribe,
        unsubscribe=subjects.unsubscribe,
        close=subjects.close,
        sub_close=subjects.sub_close,
        acks_subs=subjects.acks_subs,
    )


def _first_message(link: Link, clock: Clock, seconds: float) -> bytes | None:
    """The payload of the first message that comes; ``None`` after the time, or if nobody listens."""
    parser = Parser(link.max_payload)
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    buffer = bytearray(65536)
    end = clock.mono() + seconds
    events = parser.feed(link.leftover)
    while True:
        for event in events:
            if event[0] == "MSG":
                return bytes(event[4])
            if event[0] == "HMSG":
                return None
            if event[0] == "PING":
                link.send(b"PONG\r\n", 2.0)
        left = end - clock.mono()
        if left <= 0:
            return None
        poll.poll(left * 1000)
        events = []
        if n := link.recv_into(memoryview(buffer)):
            events = parser.feed(memoryview(buffer)[:n])


def _raise_file_limit() -> None:
    """As many files as this user may open: every channel holds its directory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def pause_and_end(why: str, status: int, seconds: int) -> NoReturn:
    """One line, and everything is given up at once; whoever restarts this process has to wait for ``seconds``.

    The process goes on as a shell that only sleeps: so the lock, the files and the sockets are free for a standby while
    the pause lasts, and no thread that hangs in storage has to be asked.
    """
    log.stream.fatal(f"{why} (exit in {seconds}s)")
    sys.stderr.flush()
    with contextlib.suppress(OSError):
        os.execv("/bin/sh", ["sh", "-c", f"sleep {seconds}; exit {status}"])  # noqa: S606  # it is a shell
    os._exit(status)


def end_process(why: str, status: int) -> NoReturn:
    """One line, and out: whatever decides to die must not wait for storage that hangs."""
    log.stream.fatal(why)
    sys.stderr.flush()
    os._exit(status)
