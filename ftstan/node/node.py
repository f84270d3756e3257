"""One node's life: options, NATS, lock, store, broker, serve, stop.

Runs on the control thread (asyncio) and never touches storage: whatever may block is posted to the
data plane. Exit statuses are those that operators know: 0 after SIGINT, 143 after SIGTERM, 1 when
the start failed, 75 when the store belongs to somebody else or can not be written (come back as a
standby).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ftstan.base import log
from ftstan.base.disk import TimedDisk
from ftstan.base.errors import (
    ConfigError,
    FencedError,
    FtstanError,
    LockBusyError,
    NatsError,
    RecoveryError,
    StoppedError,
    StoreError,
)
from ftstan.base.reserved import CLUSTER_MARK
from ftstan.base.states import NodeState
from ftstan.broker.broker import Broker, BrokerOptions
from ftstan.broker.constants import ANOTHER_CLUSTER
from ftstan.broker.dedup import Window
from ftstan.broker.records import info_of, subjects_of
from ftstan.config.banner import (
    READY,
    effectless_lines,
    recovered_line,
    starting_lines,
    store_lines,
)
from ftstan.config.limits import Limits
from ftstan.config.units import SECOND
from ftstan.ft.deadlines import LAST_ANSWERS_S, STOP_S, STOP_UNOWNED_S
from ftstan.ft.owned import OwnedAccess
from ftstan.nats import portsfile, tasks
from ftstan.nats.direct_road import link_options, open_front, tell_events, why_not
from ftstan.nats.embedded import NatsServerChild
from ftstan.nats.generated import child_options
from ftstan.nats.material import check_material
from ftstan.nats.pulse import ANSWER_WITHIN_S, PATIENT_S
from ftstan.node import duplicate_cluster_check
from ftstan.node.context import EXIT_FENCED, Context
from ftstan.node.dataplane import shown
from ftstan.node.early import link_name
from ftstan.node.handover_buffer import count_publishes
from ftstan.node.member import NodeMember
from ftstan.node.nopages import NoPages
from ftstan.node.partitioning import Partitioning
from ftstan.node.pipeline import Serving
from ftstan.node.protection import Protection
from ftstan.node.reload import Reloader
from ftstan.node.runtime import raise_file_limit
from ftstan.node.signals import Handlers
from ftstan.node.status import StatusSource
from ftstan.stores.encryption.ring import encrypted, ring_of
from ftstan.stores.encryption.unkeyed import check_without_key
from ftstan.stores.interface import StoreContext
from ftstan.wire.subjects import Subjects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ftstan.base.clock import Clock
    from ftstan.config.options import LinkOptions, ServerOptions
    from ftstan.ft.epoch_records import Ending
    from ftstan.nats.link import Link
    from ftstan.node.admin_listener import AdminListener
    from ftstan.node.clustered import ClusterNode
    from ftstan.node.context import MonitorPart
    from ftstan.node.early import Early
    from ftstan.node.group import FtGroup
    from ftstan.node.handover_buffer import BufferedPublishes
    from ftstan.node.runtime import Host
    from ftstan.stores.interface import Store, StoreAccess, StoreKind

_LOCK_PATIENCE_S = 5.0
_LOCK_RETRY_S = 0.1
_CANCEL_AGAIN_S = 10.0
_CONNECT_WITHIN_S = 2.0
#: How long what no client waits for gives way to clients.
_CLIENTS_FIRST_S = 0.25
_READY_S = 10.0
#: How long a stop may get ready beside serving; what is not ready then is done while nobody serves.
_PREPARE_S = 15.0
#: How long the nodes of a cluster have to answer a question for the dashboard.
_PEERS_S = 0.5


def run(
    options: ServerOptions,
    reread: Callable[[], ServerOptions] | None = None,
    host: Host | None = None,
    early: Early | None = None,
) -> int:
    """Run one node until a signal ends it; returns the exit status.

    Raises ``FtstanError`` when the start fails.

    ``reread`` gives the options anew for a reload; without it there is nothing to reload.

    ``early``: what was begun already.
    """

    async def live() -> int:
        node = Node(options, host=host, reread=reread, early=early)
        asyncio.get_running_loop().set_exception_handler(tasks.loop_errors(node.die))
        threading.excepthook = node.thread_failed
        status = await node.main()
        node.host.over(status)
        return status

    try:
        return asyncio.run(live())
    except (FencedError, MemoryError) as error:
        # During recovery or while stopping, too: a supervisor starts it again as a standby.
        log.stream.fatal(shown(error), code="FTS-2199")
        return EXIT_FENCED


# Both are called on another thread: they take a moment, and the control loop has timers. Late, for
# nobody who starts a server waits for them, and few servers have pages.


def _load_admin_listener() -> type[AdminListener]:
    from ftstan.node.admin_listener import AdminListener  # noqa: PLC0415

    return AdminListener


def _load_pages() -> Callable[[Node], MonitorPart]:
    from ftstan.monitor.gate import gate_of  # noqa: PLC0415
    from ftstan.monitor.http import Monitor  # noqa: PLC0415
    from ftstan.node.pages import Pages  # noqa: PLC0415

    def make(node: Node) -> Monitor:
        options = node.options.monitor
        return Monitor(Pages(node), options, gate_of(options))

    return make


def _load_clustered() -> StoreKind:
    from ftstan.cluster.access import ClusterAccess  # noqa: PLC0415

    return ClusterAccess


class Node(Context):
    """What one process is: a standalone server, or a member of a group.

    It makes the parts, starts and stops them.
    """

    group: FtGroup | None
    cluster: ClusterNode | None
    member: NodeMember
    status: StatusSource
    protection: Protection
    partitioning: Partitioning

    def __init__(
        self,
        options: ServerOptions,
        clock: Clock | None = None,
        host: Host | None = None,
        reread: Callable[[], ServerOptions] | None = None,
        early: Early | None = None,
    ) -> None:
        super().__init__(options, clock, host)
        self._early = early
        self._listens_for = ""
        """The subject on which the link listens for clients already, and has found nobody else."""
        self._access: StoreAccess | None = None
        self._store: Store | None = None
        """Open, or being recovered; the data plane's."""
        self._ports_file = ""
        self._served = asyncio.Event()
        """Clients are answered for the first time."""
        self.monitor = NoPages()
        self.partitioning = Partitioning(self)
        self.protection = Protection(self)
        self.reloader = Reloader(self, reread, self._renew)
        self.handlers = Handlers(self, self.reloader.on_signal)
        self.status = StatusSource(self)
        self.member = NodeMember(self, self.reloader.reload, self.handlers.begin_drain)
        self._admin_listener: AdminListener | None = None
        self._pages: asyncio.Task[None] | None = None
        self._operators: asyncio.Task[None] | None = None
        """These open what no client waits for, beside the start."""
        self.group = None
        self.cluster = None

    # ---- life
    # ----------------------------------------------------------------------------------------------

    async def main(self) -> int:
        """Start, serve, stop."""
        tasks.end_server_with(self.die)
        for line in starting_lines(self.options.cluster_id, self.server_id):
            log.stream.info(line)
        for line in effectless_lines(self.options):
            log.stream.warning(line)
        if self.host.owns_process:
            raise_file_limit()
            self.handlers.install()
        self.protection.start()
        try:
            await self._start_or_stop()
            if self._failure is None:
                self.host.started()
            await self.stopping.wait()
            if self._failure is not None:
                raise self._failure
            return await self._stop()
        finally:
            await self._end_children()

    async def _start_or_stop(self) -> None:
        """Start; a signal ends that wherever it is, also where it waits for storage."""
        start = tasks.waited(self._start(), "start")
        stop = tasks.waited(self.stopping.wait(), "stop")
        try:
            await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            start.cancel()
            raise
        finally:
            stop.cancel()
        if start.done():
            start.result()
            return
        with contextlib.suppress(FtstanError):
            # What goes wrong in a start that is not wanted any more is nobody's concern.
            await tasks.end(start, _CANCEL_AGAIN_S)

    async def _start(self) -> None:
        options = self.options
        for line in check_material(options):
            log.stream.warning(line)
        self.ring = ring_of(options.encryption, os.environ)
        # On the data plane's thread: opening the directory may block on storage like everything
        # else in it.
        self.plane.start()
        make = _load_clustered() if options.clustered else self.store_kind(options.store)
        disk = self.host.disk()
        progress = self.status.on_progress
        context = StoreContext(options, self.server_id, self.clock, self._no_more, progress, disk)
        self._access = await self.call(lambda: make(context))
        if isinstance(self._access, OwnedAccess):
            self.owner = self._access.owner
            if self.owner.has_directory and isinstance(disk, TimedDisk):
                self.calls_of_storage = disk.calls
        urls = self.nats_urls = await self._start_nats()
        link = self.link = self._take_link() or self.link_class(
            urls,
            name=link_name(options.cluster_id, "general"),
            options=self.presented,
            clock=self.clock,
        )
        if self.front is not None:
            link.through = self.front.attach
            if options.ft_group:
                self.front.listen()
        if options.ft_group:
            await self._open_pages()
            await self._start_group(urls)
            return
        if options.clustered:
            await self._open_pages()
            await self._start_cluster(self._access, urls)
            return
        if not link.connected:
            await self.call(lambda: link.connect(_CONNECT_WITHIN_S))
            if self.front is not None:
                self.front.listen()
        self.opens_aside = True
        self._pages = tasks.waited(self._open_pages_aside(), "pages")
        self._operators = tasks.waited(self._hear_operators(self._pages), "operators")
        await self._lock_standalone(self._access)
        self.owns = True
        await self.call(self._access.activate)
        await self.serve()

    async def _start_nats(self) -> list[str]:
        options = self.options
        if options.nats_servers:
            return list(options.nats_servers)
        launched = None
        if self._early is not None:
            launched = self._early.take_child()
            self.front = self._early.take_front()
        elif not why_not(options):
            with contextlib.suppress(OSError):  # of a port that is taken the NATS server tells
                self.front = open_front(options)
        if self.front is not None:
            asyncio.get_running_loop().add_reader(self.front.events, tell_events, self.front)
        self.child = NatsServerChild(child_options(options), launched=launched, front=self.front)
        await self.child.start()
        if self.front is not None:
            self.presented = link_options(self.presented, options.nats)
        if options.config_file:
            log.nats.info(f"Using configuration file: {options.config_file}")
        if reason := why_not(options):
            log.nats.info(f"Clients are served by the NATS server alone: {reason}")
        return [self.child.link_url]

    def _take_link(self) -> Link | None:
        if self._early is None:
            return None
        link = self._early.take_link()
        if link is not None:
            self._listens_for = self._early.discovery
        return link

    async def _start_group(self, urls: list[str]) -> None:
        # Late: a server that stands alone needs nothing of it.
        from ftstan.node.admin_listener import AdminListener  # noqa: PLC0415
        from ftstan.node.group import FtGroup  # noqa: PLC0415

        self._admin_listener = AdminListener(self)
        # A group on a database has no directory that its key could be in.
        await self._admin_listener.make_key()
        self.group = FtGroup(self, self, self._admin_listener, urls)
        await self.group.start()

    async def _start_cluster(self, access: StoreAccess, urls: list[str]) -> None:
        from ftstan.node.admin_listener import AdminListener  # noqa: PLC0415
        from ftstan.node.cluster_peers import ClusterPeers  # noqa: PLC0415
        from ftstan.node.clustered import ClusterNode, membership_subject  # noqa: PLC0415

        await self._lock_standalone(access)
        self.owns = True
        await self.call(access.activate)
        self._admin_listener = AdminListener(self)
        await self._admin_listener.open_own()
        peers = ClusterPeers(partial(self._admin_listener.ask, seconds=_PEERS_S), self.clock)
        self.cluster = ClusterNode(self, self, access, urls, peers)
        if self.options.cluster.allow_add_remove_node:
            listener = self._admin_listener
            for verb, answer in (("add", self.cluster.add), ("remove", self.cluster.remove)):
                subject = membership_subject(self.options.cluster_id, verb)
                await listener.hear(subject, answer, self.is_serving)
        await self.cluster.start()

    async def _open_pages_aside(self) -> None:
        """Open the pages when clients are served, or soon if that takes long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLIENTS_FIRST_S):
                await self._served.wait()
        await self._open_pages()

    async def _hear_operators(self, pages: asyncio.Task[None]) -> None:
        await asyncio.wait([pages])
        listener = await asyncio.to_thread(_load_admin_listener)
        self._admin_listener = listener(self)
        await self._admin_listener.open_own()

    async def _open_pages(self) -> None:
        options = self.options
        if options.monitor.http_port or options.monitor.https_port:
            make = await asyncio.to_thread(_load_pages)
            self.monitor = make(self)
        port = await self.monitor.open(options.nats.tls, self.child)
        if self.child is not None:
            self._ports_file = portsfile.write(options, self.child, port)

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

    async def serve(
        self, ahead: Callable[[], Awaitable[BufferedPublishes | None]] | None = None
    ) -> None:
        """Recover and open the server; the store is ours. Raises ``FtstanError``.

        ``ahead`` is asked, once the store is recovered, for what has come before.
        """
        if self._no_more.is_set():
            # The stop gives the store back, or has done so: nobody is to watch over it any more.
            raise StoppedError("the server stops")
        self.protection.own(self._access)
        self.note_epoch()
        async with self.partitioning:
            recovered = await self.call(self._recover)
            came = await ahead() if ahead is not None else None
            try:
                await self.partitioning.settled()
                await self.call(lambda: self._open(recovered, came))
            except BaseException as error:
                if came is not None:
                    self._tell_unused(came, error)
                raise
            if self.front is not None:
                self.front.be_direct(on=True)
        for _ in range(round(_READY_S / 0.01)):
            if self.is_serving():
                break
            await asyncio.sleep(0.005)
        self._served.set()
        # Who reads that the server is ready may ask for pages, and give orders.
        for task in (self._pages, self._operators):
            if task is not None:
                await task
        self.opens_aside = False
        await self.partitioning.meet()
        for line in store_lines(self.options):
            log.stream.info(line)
        log.stream.info(READY)
        if self.owner is not None:
            await self.call(self.owner.tidy)

    def _tell_unused(self, came: BufferedPublishes, error: BaseException) -> None:
        """Count what was kept during a hand-over, and is not answered because this server did not
        open.
        """
        assert self.link is not None
        if count := count_publishes(came.data, self.link.max_payload, came.rows):
            self.unbridged += count
            why = error.text if isinstance(error, FtstanError) else "the server stops"
            log.stream.warning(
                f"ft: {count} publishes that arrived during a hand-over are not answered: {why}"
            )

    def _renew(self, options: LinkOptions) -> None:
        """Present ``options`` to NATS from the next connection on, whoever of us makes it."""
        self.presented = options
        if self.link is not None:
            self.link.renew(options)
        self.partitioning.renew(options)
        if self._admin_listener is not None:
            self._admin_listener.renew(options)
        if self.group is not None:
            self.group.renew(options)

    # ---- on the data plane's thread
    # ------------------------------------------------------------------------------

    def _recover(self) -> Serving:
        options = self.options
        log.stream.info("Recovering the state...")
        self._serving_since = self.clock.mono()
        assert self._access is not None
        store = self._store = encrypted(self._access.open(), self.ring, options.encryption)
        limits = self.partitioning.limits(options.limits)
        store.set_limits(Limits(limits))
        recovered = store.recover()
        if options.dir and not options.clustered:
            self._leave_cluster(store)
        info = recovered.info
        is_encrypted = self.ring is not None
        if self.ring is None:
            recovered, is_encrypted = check_without_key(
                store, recovered, accept_mixed=options.encryption.accept_mixed
            )
        if info is not None and info.cluster_id != options.cluster_id:
            raise ConfigError(
                ANOTHER_CLUSTER.format(cluster_id=options.cluster_id, recovered=info.cluster_id),
                hint="give -cid the value that this datastore was made with",
            )
        subjects = Subjects.for_cluster(options.cluster_id, options.discover_prefix)
        if info is not None:
            self.partitioning.check(info)
            subjects = subjects_of(info, subjects)
        if info is None or not info.sub_close:
            told = info_of(options.cluster_id, subjects)
            store.set_server_info(replace(told, encrypted=is_encrypted))
        broker = Broker(
            store,
            subjects,
            BrokerOptions(
                hb_interval=options.hb_interval,
                hb_timeout=options.hb_timeout,
                hb_fail_count=options.hb_fail_count,
                max_channels=limits.max_channels,
                replace_durable=options.replace_durable,
                limits=limits.channel,
                channels=limits.channels,
                deliveries=limits.deliveries,
                partition=self.partitioning.partition,
            ),
            self.nuid,
        )
        if options.dedup_window:
            broker.window = Window(
                options.dedup_window,
                recovered.remembered,
                self.ring.mark_keys() if self.ring is not None else (),
            )
        if self.partitioning.moving is not None:
            recovered = self.partitioning.moving.set_aside(store, recovered)
            self.partitioning.moving.tell(broker)
        broker.recover(recovered, self.clock.wall_ns(), round(self.clock.mono() * 1e9))
        log.stream.info(
            recovered_line(
                len(recovered.channels) + len(recovered.later) if info is not None else None
            )
        )
        assert self.link is not None
        suspicion = options.ft.hb_missed_interval / SECOND
        is_alone = not (options.ft_group or options.clustered)
        serving = Serving(
            store,
            broker,
            self.link,
            self.clock,
            link_name(self.options.cluster_id, "general"),
            suspicion_s=suspicion,
            answer_within_s=PATIENT_S if is_alone and self.child else ANSWER_WITHIN_S,
        )
        serving.use(
            options.io_buffer_size,
            self.plane.awake,
            self.front.make_room if self.front is not None else None,
            collects=self.host.owns_process,
        )
        if is_alone and self.partitioning.partition is None:
            self._refuse_duplicates(subjects.discovery)
        broker.tell_subjects()
        return serving

    def _leave_cluster(self, store: Store) -> None:
        """If the datastore is a node's, it is that no more from now on."""
        if not os.path.lexists(os.path.join(self.options.dir, CLUSTER_MARK)):
            return
        from ftstan.cluster.checkpoint import leave_alone  # noqa: PLC0415  # rarely needed

        store.confirm()
        if leave_alone(self.options.dir):
            log.stream.warning(
                "The datastore was that of a node of a cluster: served without -clustered, it is "
                "that no more"
            )

    def _refuse_duplicates(self, discovery: str) -> None:
        assert self.link is not None
        if self._listens_for:
            if self._listens_for == discovery:
                duplicate_cluster_check.tell_alone()
                return
            # The store was made with another prefix: nobody asks under the one of the options.
            self.link.close()
            self.link.connect(_CONNECT_WITHIN_S)
        duplicate_cluster_check.refuse_duplicates(
            self.link, self.clock, self.nuid, discovery, self.options.cluster_id
        )

    def _open(self, serving: Serving, ahead: BufferedPublishes | None) -> None:
        if self._no_more.is_set():
            raise StoppedError("the server stops")
        buffer = self.plane.handover_buffer
        if buffer is not None:
            # Given up, and not dropped yet: what was kept is only to be counted.
            buffer.leave_link().hand_on()
        elif self.plane.reserved is not None:
            self.plane.reserved.hand_on()
        self.plane.reserved = None
        with contextlib.suppress(NatsError):
            # In a group NATS may be away for a moment; the loop goes on trying.
            serving.open_link(ahead)
        # A reload may have come while it recovered.
        serving.set_limits(self.partitioning.limits(self.options.limits))
        self.plane.serving = serving

    # ---- stopping
    # ----------------------------------------------------------------------------------------------

    async def _stop(self) -> int:
        log.stream.info("Shutting down.")
        if self.group is not None:
            await self.group.finish_takeover()
        self._no_more.set()
        released = False
        status = self.handlers.status(self._exit_status)
        patience = STOP_S if self.owns else STOP_UNOWNED_S
        try:
            async with asyncio.timeout(patience):
                followed = self.group is not None and await self.group.find_successor()
                if not self._may_be_untidy(followed=followed):
                    await self._prepare_stop()
                if self.group is not None and followed:
                    await self.group.hand_over()
                await self.partitioning.end()
                if self.cluster is not None:
                    await self.cluster.stopping()
                self.role = NodeState.SHUTDOWN
                if self.group is not None:
                    await self.group.stopping()
                # Whether all that was answered has reached the successor or not: from here on
                # nobody is served until it has the store.
                tidy = not self._may_be_untidy(followed=followed)
                released = await self.call(lambda: self._stop_serving(tidy=tidy))
        except TimeoutError:
            if not self.owns:
                self.host.end(
                    "storage does not answer: ending without it, nothing was written", status
                )
            # Storage that hangs, and work that a starved machine has no time for, look alike here.
            self.host.end(
                f"the stop has not ended within {patience:g}s: storage does not answer, or the "
                "machine is too slow for what was left to do",
                EXIT_FENCED,
            )
        if self.group is not None:
            await self.group.stopped(released=released)
        if self.cluster is not None:
            await self.cluster.stopped()
        # Behind the word that the store is free: NATS may take its time for the last answers.
        await self.call(self._end_link)
        return status

    def _may_be_untidy(self, *, followed: bool) -> bool:
        """Whether the store may be left as a crash leaves it: one of our own follows, and no
        original server may.
        """
        return followed and self.group is not None and not self.group.mixed

    async def _prepare_stop(self) -> None:
        """Do ahead what a stop has to do, while publishes are served: the shorter is the time when
        nobody does. Without a link nobody is served, and whoever could waits for the store.
        """
        end = self.clock.mono() + _PREPARE_S
        serving = self.plane.serving
        while (
            serving is not None
            and self.is_serving()
            and self.clock.mono() < end
            and await self.call(serving.prepare_stop)
        ):
            pass

    def _stop_serving(self, *, tidy: bool) -> bool:
        """Close the store and give the lock back; returns whether this node was the owner.

        Not ``tidy``: one of our own follows, who reads the store as after a crash.
        """
        if self.front is not None:
            self.front.be_direct(on=False)
        serving = self.plane.serving
        self.plane.serving = None
        self.plane.follower = None
        self._end_reserved()
        if serving is not None:
            self._store = None
            try:
                serving.stop(tidy=tidy)
            except (StoreError, StoppedError) as error:
                log.stream.error(f"{error.text}; what was acknowledged is safe")
        elif self._store is not None and self._store.kind == "FILE":
            log.stream.warning(
                "The recovery was not finished: the store is as its last owner left it; "
                "before an original server starts on it, run: ftstanctl store handover"
            )
        self._abandon()
        active = self.owner is not None and serving is not None
        self.protection.disown()
        if self.owner is not None and active:
            self.owner.ending = self._ending()
        if self._access is not None:
            self._access.close()
        return active

    def _ending(self) -> Ending:
        # Late: a server that owns no directory needs nothing of it.
        from ftstan.ft.epoch_records import Ending  # noqa: PLC0415

        if self.handlers.draining:
            return Ending.DRAIN
        if self.hands_over:
            return Ending.SWITCHOVER
        if self.stop_signal == signal.SIGTERM:
            return Ending.SIGTERM
        return Ending.SIGINT if self.stop_signal == signal.SIGINT else Ending.BY_ITSELF

    def _end_link(self) -> None:
        # A hand-over may have been dropped since.
        self._end_reserved()
        if self.link is not None:
            self.link.finish(LAST_ANSWERS_S)
            log.stream.debug(
                f'connection "{link_name(self.options.cluster_id, "general")}" has been closed'
            )

    def give_back(self) -> None:
        """On the data plane's thread: what was opened is closed, the lock is free for another
        node.
        """
        if self.front is not None:
            self.front.be_direct(on=False)
        self.plane.serving = None
        self._abandon()
        self.protection.disown()
        self.owns = False
        if self.owner is not None:
            self.owner.release()
        self.note_epoch()

    def _end_reserved(self) -> None:
        if self.plane.reserved is not None:
            self.plane.reserved.end()
            self.plane.reserved = None

    def _abandon(self) -> None:
        store = self._store
        self._store = None
        if store is not None:
            store.abandon()

    def close(self) -> None:
        """When the data plane's thread is over in a program that goes on: what is open is given
        back.
        """
        self.plane.serving = self.plane.handover_buffer = None
        self.plane.follower = None
        self._end_reserved()
        self._abandon()
        if self.link is not None:
            self.link.close()
        if self._access is not None:
            self._access.close()

    @property
    def client_url(self) -> str:
        """Where clients connect."""
        return self.child.client_url if self.child is not None else self.options.nats_servers[0]

    async def _end_children(self) -> None:
        await self.protection.close()
        await self.partitioning.end()
        for task in (self._pages, self._operators):
            if task is not None:
                with contextlib.suppress(FtstanError):
                    await tasks.end(task, _CANCEL_AGAIN_S)
        if self._admin_listener is not None:
            await self._admin_listener.close()
        with contextlib.suppress(NatsError):
            await self.monitor.stop()
        if self.group is not None:
            await self.group.close()
        if self.cluster is not None:
            await self.cluster.close()
        await self.handlers.wait_for_child()
        portsfile.remove(self._ports_file)
        if self.front is not None:
            self.front.close_port()
        if self.child is not None:
            await self.child.stop()
        if self.front is not None:
            asyncio.get_running_loop().remove_reader(self.front.events)
            self.front.stop()
