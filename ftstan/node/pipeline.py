"""Serving: one batch after the other, from socket to socket.

    socket -> parse -> apply -> commit -> confirm -> emit -> socket

Runs on the data plane's thread and may block on its socket and its storage. Nothing leaves this
process before its commit returned and ``confirm`` said that the store is ours; if the link breaks
between the two, the output is dropped, never replayed, and what it delivered is due again when the
link is back.
"""

from __future__ import annotations

import contextlib
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ftstan.base.collecting import Collecting
from ftstan.base.errors import NatsError, StoreError, WireError
from ftstan.base.histogram import Histogram
from ftstan.base.log import stream as log
from ftstan.base.ratelimit import RateLimit
from ftstan.config.validation import check_limits
from ftstan.nats.link import RECONNECT_WAIT_S, ConnectionLostError, Link
from ftstan.nats.pulse import ANSWER_WITHIN_S, Pulse
from ftstan.nats.sendwindow import SendWindow
from ftstan.node.arrivals import ArrivalRoom
from ftstan.node.handover_buffer import count_publishes
from ftstan.stores.interface import is_client_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ftstan.base.clock import Clock
    from ftstan.broker.broker import Broker
    from ftstan.config.options import StoreLimits
    from ftstan.ft.handover import PublishKey
    from ftstan.node.awake import Awake
    from ftstan.node.handover_buffer import BufferedPublishes
    from ftstan.stores.interface import ClientInfo, Store

_PING = 3
_PONG = 4
_INFO = 5
_OK = 6
_ERR = 7

_READ_AHEAD: Final = 4 << 20
BUFFER_SIZE: Final = 1 << 20
_SEND_DEADLINE_S: Final = 10.0
_CONNECT_TIMEOUT_S: Final = 2.0
_TICK_S: Final = 1.0
#: Seconds in which acks gather that are in memory only: files that are replaced together take as
#: long as one.
_GATHER_S: Final = 0.2
_JOIN_BELOW: Final = 64 << 10
#: Seconds until deliveries that wait for the NATS server are tried again without a word from it.
_PACE_S: Final = 0.02
#: Seconds of a turn that go to opening recovered channels, in a quiet one and beside requests.
_OPEN_S: Final = 0.003
_OPEN_BESIDE_S: Final = 0.001
#: The same for the work of a stop that can be done while publishes are still served.
_PREPARE_S: Final = 0.004
_LATE_COPIES_S: Final = 2.0
#: Seconds in which who leaves still carries out requests that wait: half of what its successor has
#: patience for.
_REQUESTS_S: Final = 0.25


class Serving:
    """An active server's broker, store and link.

    ``name``: the link's connection name, for log lines.

    ``suspicion_s``: a turn that comes so late was preceded by a pause of this process (or of the
    machine).

    ``answer_within_s``: how long the NATS server may take to answer a PING.
    """

    def __init__(
        self,
        store: Store,
        broker: Broker,
        link: Link,
        clock: Clock,
        name: str,
        *,
        suspicion_s: float,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self.store = store
        self.broker = broker
        self.link = link
        self.ready = False
        """Whether NATS has processed our subscriptions since the last connect."""
        self.served = False
        """Whether it was ready at any time."""
        self.batch_since: float | None = None
        """Since when (seconds) a batch is applied and not committed and confirmed.

        Other threads read it.
        """
        self.first_ack_at: float | None = None
        """When (seconds) the first publish was answered.  Other threads read it."""
        self.commits = Histogram()
        """Seconds from a batch's first publish until it is durable and confirmed."""
        self.reconnects = 0
        """How often the link to NATS was lost and made again."""
        self.unbridged = 0
        """Publishes kept during a hand-over that went with the link before they were read."""
        self.failed_commits = 0
        """How often storage refused a channel its part of a batch."""
        self._pongs_due = 0
        self._pings: deque[bool | Future[None]] = deque()
        """Of each PING under way, the oldest first, whether it stands behind a piece of output; or
        who waits for its answer.
        """
        self._send_window = SendWindow()
        self.most_delivered = broker.budget
        """Bytes of deliveries in one write, when the NATS server keeps up."""
        self._forget_at = float("inf")
        self._leaving: Future[list[PublishKey]] | None = None
        self._leave_by = 0.0
        self._has_left = False
        """A hand-over took our subscriptions back: what is published is the successor's from here
        on, for good.
        """
        self._clock = clock
        self._name = name
        self._suspicion_s = suspicion_s
        self._last_turn = clock.mono()
        self._buffer = bytearray(BUFFER_SIZE)
        self._start = 0
        self._end = 0
        self._more = False
        self._next_tick = clock.mono() + _TICK_S
        self._catch_up_at = float("inf")
        """When acks have waited in memory for long enough."""
        self._before_us: list[PublishKey] = []
        """Publishes that the former owner answered, as long as a copy of one may come late."""
        self._is_kept = False
        """Whether what is in the buffer may have been kept during a hand-over."""
        self._noting: set[str] = set()
        """Who wants publishes noted."""
        self._named_too: list[PublishKey] = []
        """Those of them that our successor is told of."""
        self._next_connect = 0.0
        self._was_connected = False
        self._pulse = Pulse(clock.mono(), answer_within_s)
        self._full = RateLimit()
        self._awake: Awake | None = None
        self._collecting: Collecting | None = None
        self._is_behind = False
        """Whether more was read than the last batch had time for."""
        self._room = ArrivalRoom()

    def use(
        self,
        buffer_size: int,
        awake: Awake | None,
        room: Callable[[int], None] | None,
        *,
        collects: bool,
    ) -> None:
        """Before the link is opened: bytes of the buffer for what is read, at first.

        Who is told of publishes, and who of the bytes that may wait for this link.

        The buffer grows when more has come, up to a bound. ``collects``: the collector of this
        process is ours.
        """
        self._buffer = bytearray(buffer_size)
        self._awake = awake
        if room is not None:
            self._room.tell = room
            room(self._room.room)
        if collects:
            self._collecting = Collecting()
            self._collecting.begin(self._clock.mono())

    # ---- the link
    # ----------------------------------------------------------------------------------------------

    def open_link(self, ahead: BufferedPublishes | None = None) -> None:
        """Subscribe to everything; connects first if the link is down. Raises ``NatsError``.

        ``ahead``: what has come on this link already, before the store was ours.
        """
        if self._has_left:
            raise NatsError("this server has handed over: it subscribes to nothing any more")
        if ahead is not None and ahead.rows != self.broker.publish_rows:
            # Only a forged message names others. To NATS a sid that is in use goes on meaning what
            # it meant: this server would hear no publish until it connects again.
            log.warning(
                "ft: what arrived during the hand-over came on other subjects, and is not used"
            )
            self.link.close()
            ahead = None
        elif ahead is not None and not self.link.connected:
            # What was answered is known, wherever a copy of it comes from.
            self._tell_unread(ahead.data)
            ahead = replace(ahead, data=b"", pongs=0)
        self._count_kept()
        if not self.link.connected:
            self.link.connect(_CONNECT_TIMEOUT_S)
        if ahead is not None:
            self._is_kept = True
            self.broker.answered = ahead.answered
            self._before_us = [key for key, copies in ahead.answered.items() for _ in range(copies)]
            # Members that were not named have heard what was kept here, too.
            self.broker.taken = []
        self.broker.max_payload = self.link.max_payload
        leftover = self.link.leftover if ahead is None else ahead.data
        self._buffer[: len(leftover)] = leftover
        self._start = 0
        self._end = len(leftover)
        self.broker.is_full = False
        self._is_behind = False
        self.broker.passing_over = 0
        self._more = bool(leftover)
        self.ready = False
        self._pongs_due = 1 if ahead is None else 1 + ahead.pongs
        self._pings = deque([False] * self._pongs_due)
        self._send_window = SendWindow()
        self._pace()
        self._pulse = Pulse(self._clock.mono(), self._pulse.within_s)
        self.link.send(self.broker.subscribe_lines() + b"PING\r\n", _SEND_DEADLINE_S)
        if self._was_connected:
            self.reconnects += 1
            log.info(
                f'connection "{self._name}" reconnected to NATS Server at "{self.link.url_shown}"'
            )
        self._was_connected = True

    def _count_kept(self) -> None:
        """Tell of what was kept during a hand-over and is still unread: it goes with its link.

        The bytes of the next link cannot follow it: it may end within a frame.
        """
        if not self._is_kept:
            return
        self._is_kept = False
        unread = bytes(self._buffer[self._start : self._end])
        self._start = self._end = 0
        self._tell_unread(unread)

    def _tell_unread(self, unread: bytes) -> None:
        count = count_publishes(unread, self.link.max_payload, self.broker.publish_rows)
        if count:
            self.unbridged += count
            log.warning(
                f"ft: {count} publishes that arrived during a hand-over are not answered: "
                "the link was lost"
            )

    def _lost(self, error: NatsError) -> None:
        log.error(f'connection "{self._name}" has been disconnected: {error.text}')
        self.link.close()
        self.ready = False
        for asked in self._pings:
            if isinstance(asked, Future):
                asked.set_exception(error)
        self._pings.clear()
        if self._leaving is not None:
            leaving = self._leaving
            self._leaving = None
            if leaving.set_running_or_notify_cancel():
                leaving.set_exception(error)
        self.broker.link_lost(self._now())
        # Acks that came in the batch which is cut short: the next one may be long in coming.
        self.broker.write_events()
        self._next_connect = self._clock.mono()

    def _now(self) -> int:
        return round(self._clock.mono() * 1e9)

    # ---- one turn
    # ----------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The descriptor whose bytes this station takes.

        -1 while there is none, or when it takes none any more.
        """
        return -1 if self._is_gone else self.link.fileno()

    @property
    def pending(self) -> bool:
        """Whether bytes wait of which ``poll`` on the descriptor says nothing."""
        return not self._is_gone and self.link.pending

    def timeout(self) -> float:
        """Seconds until work is due even if no bytes arrive."""
        broker = self.broker
        now = self._clock.mono()
        due = min(self._next_tick, self._catch_up_at) - now
        if self._is_gone:
            return max(due, 0.0)
        if self.link.connected and (self._is_behind or broker.goes_on or broker.later):
            return 0.0
        if self.link.connected and self._is_paced:
            # Whatever else is due at once is a delivery.
            return max(min(due, _PACE_S), 0.0)
        if self.link.connected and self._more:
            return 0.0
        if not self.link.connected:
            due = min(due, self._next_connect - now)
        elif (timer := self.broker.timers.next) is not None:
            due = min(due, timer / 1e9 - now)
        return max(due, 0.0)

    def turn(self, *, readable: bool) -> None:
        """Take one batch through it.

        Raises ``FencedError`` and ``StoreError``: the store cannot be served.
        """
        now = self._clock.mono()
        before = self._last_turn
        if now - before > self._suspicion_s:
            # Everything looks overdue after a pause, and somebody else may serve by now: storage is
            # asked before any timer fires and before anything is applied that was read, or waits in
            # the socket, since before.
            self.store.confirm()
        self._last_turn = now
        if self._is_gone:
            # Only the work of once a second, until the store is closed.
            pass
        elif not self.link.connected:
            self._reconnect()
        else:
            try:
                applied = readable or self._end > self._start
                worked = applied = applied and self._read(now)
                if not readable:
                    self._send_window.looked(now)
                self._pace()
                if self.broker.later:
                    self._open_channels(_OPEN_BESIDE_S if worked else _OPEN_S)
                    worked = True
                if self._leaving is not None and now >= self._leave_by:
                    self.broker.give_up_waiting()
                if not self._is_behind:
                    # Else what has come in time would count as missing.
                    worked |= self.broker.run_timers(self._clock.wall_ns(), self._now())
                if worked or self._more or self.broker.has_work:
                    self._commit_and_send()
                if self._leaving is None:
                    self.broker.inactivity.delete_due()
                elif self._pongs_due <= 0 and (not self.broker.goes_on or now >= self._leave_by):
                    self._left()
                if not applied:
                    self._check_liveness(now, slept=now - before > 2 * _TICK_S)
            except (ConnectionLostError, WireError) as error:
                self._lost(error if isinstance(error, NatsError) else NatsError(error.text))
        if self._clock.mono() >= self._catch_up_at:
            self._catch_up_at = self._clock.mono() if self.store.catch_up() else float("inf")
        if self._clock.mono() >= self._next_tick:
            began = self._clock.mono()
            self.store.confirm()
            if self._clock.mono() >= self._forget_at:
                self.broker.answered = None
                self._forget_at = float("inf")
                self._before_us = []
                if not self._noting:
                    self.broker.taken = None
            self.broker.tick()
            if self._collecting is not None:
                self._collecting.look(began)
            more = self.store.tick(self._clock.wall_ns())
            self._next_tick = self._clock.mono() if more else began + _TICK_S

    def _check_liveness(self, now: float, *, slept: bool) -> None:
        """Ask a link that is silent. Raises ``ConnectionLostError`` if it does not answer.

        ``now``: when this turn began to read. What came while it was busy with storage has not been
        read yet.
        """
        if slept:
            self._pulse.overslept(now)
        if self._pulse.must_ask(now):
            self._expect_pong()
            self.link.send(b"PING\r\n", _SEND_DEADLINE_S)
        elif self._pulse.is_gone(now):
            raise ConnectionLostError(
                f"nats: no answer from {self.link.url_shown} for {self._pulse.within_s:g} s"
            )

    def _expect_pong(self) -> None:
        self._pongs_due += 1
        self._pings.append(False)

    @property
    def _is_paced(self) -> bool:
        """Whether nothing is delivered until the NATS server has read more of what it was sent."""
        return not self._has_left and self._send_window.room <= 0

    def _pace(self) -> None:
        """Deliver no more in this turn than the NATS server keeps up with."""
        if not self._has_left:
            room = self._send_window.room
            self.broker.budget = min(room, self.most_delivered) if room > 0 else -1

    def _open_channels(self, seconds: float) -> None:
        """Open recovered channels that nobody has asked for yet; publishes come first."""
        end = self._clock.mono() + seconds
        while self.broker.later and self._clock.mono() < end:
            self.broker.open_next()
        # What that has staged must not wait until somebody says something.
        self._more = True

    def _reconnect(self) -> None:
        if self._clock.mono() < self._next_connect:
            return
        self._next_connect = self._clock.mono() + RECONNECT_WAIT_S
        try:
            self.open_link()
        except NatsError:
            # Told once, when it was lost.
            self.link.close()

    def _read(self, now: float) -> bool:
        """Read what there is, up to a bound, and apply it; returns whether anything was applied."""
        # What is left of the last read goes first: else it would grow while the senders are faster
        # than storage.
        got = 0
        has_all = False
        if self.broker.is_full or self._is_behind:
            got = _READ_AHEAD
            # Nobody listens meanwhile: that is no silence.
            self._pulse.heard(now)
        while got < _READ_AHEAD:
            if self._end == len(self._buffer):
                self._make_room()
            with memoryview(self._buffer) as view:
                n = self.link.recv_into(view[self._end :])
            if n == 0:
                has_all = True
                break
            got += n
            self._pulse.heard(now)
            self._end += n
            if self._end < len(self._buffer):
                has_all = True
                break
        broker = self.broker
        before = self._start
        self._apply()
        applied = self._start - before
        if broker.touched and self._awake is not None:
            self._awake.begin(applied, self.link.fileno())
        if self._start == self._end:
            self._start = self._end = 0
        if broker.link_events:
            self._on_link_events()
        if has_all and not (broker.is_full or self._is_behind):
            self._send_window.looked(now)
        return applied > 0

    def _apply(self) -> None:
        """Apply what was read, as far as a batch has time."""
        broker = self.broker
        began = now = self._clock.mono()
        first = self._start
        # Between two looks at the time, which cost more than some publishes.
        piece = usual = self._room.room // 2
        self._is_behind = False
        while True:
            before = self._start
            end = min(before + piece, self._end)
            self._start = broker.feed(self._buffer, before, end, self._clock.wall_ns(), self._now())
            now = self._clock.mono()
            if end == self._end or broker.is_full:
                break
            # Whoever leaves has nothing to do but to answer what has come: somebody waits for that.
            if now - began >= self._room.wait and self._leaving is None:
                self._is_behind = True
                break
            # What is longer than a piece is applied as a whole.
            piece = usual if self._start > before else 2 * piece
        self._room.applied(self._start - first, now - began)

    def _make_room(self) -> None:
        """Move what is incomplete to the front, or grow: a frame must fit as a whole."""
        if self._start:
            rest = self._buffer[self._start : self._end]
            self._buffer[: len(rest)] = rest
            self._start = 0
            self._end = len(rest)
        if self._end == len(self._buffer):
            self._buffer.extend(bytes(len(self._buffer)))

    def _on_link_events(self) -> None:
        events = self.broker.link_events
        self.broker.link_events = []
        for kind, text in events:
            if kind == _PING:
                self.link.send(b"PONG\r\n", _SEND_DEADLINE_S)
            elif kind == _PONG:
                asked = self._pings.popleft() if self._pings else False
                if isinstance(asked, Future):
                    asked.set_result(None)
                    continue
                if asked:
                    self._send_window.answered(self._clock.mono())
                    continue
                self._pongs_due -= 1
                # Who leaves takes no orders any more: its clients are its successor's.
                self.ready = self._pongs_due <= 0 and not self._has_left
                self.served = self.served or self.ready
                if self.ready:
                    self._is_kept = False
                if self.ready and self.broker.answered is not None:
                    # Everything that was kept has been read by now. A copy of what was answered can
                    # still be late on its way through other NATS servers.
                    self._forget_at = min(self._forget_at, self._clock.mono() + _LATE_COPIES_S)
            elif kind == _INFO:
                self.link.take_info(text)
                self.broker.max_payload = self.link.max_payload
            elif kind == _ERR:
                log.error(
                    f'connection "{self._name}": {text.decode("utf-8", "replace").strip()}',
                    backs_off=True,
                )

    def _commit_and_send(self) -> None:
        """Commit, confirm, emit."""
        broker = self.broker
        self.batch_since = began = self._clock.mono()
        published = broker.stage()
        if broker.window is not None and (fresh := broker.window.staged()):
            # Before the data: a crash between the two must not leave a message whose repeat looks
            # new.
            self.store.remember(fresh, broker.window.known)
        failed = self.store.commit()
        if failed:
            self.failed_commits += len(failed)
            self._report(failed)
        self.store.confirm()
        if broker.window is not None:
            broker.window.committed(failed)
        if published:
            took = self._clock.mono() - began
            self.commits.observe(took)
            self._room.committed(took)
        self.batch_since = None
        self._more = broker.conclude(failed)
        if self.store.events_first:
            self.store.write_events()
        if self.link.connected:
            self._emit()
            broker.sent()
        else:
            broker.link_lost(self._now())
        self.store.write_events()
        if self.store.acks_wait:
            self._catch_up_at = min(self._catch_up_at, self._clock.mono() + _GATHER_S)
        if published:
            if self.first_ack_at is None:
                self.first_ack_at = self._clock.mono()
            if self._awake is not None:
                self._awake.end()

    def _emit(self) -> None:
        broker = self.broker
        parts = (broker.replies, broker.deliveries, broker.acks)
        size = broker.output_size
        if size >= _JOIN_BELOW:
            for part in parts:
                with memoryview(part) as view:
                    self.link.send(view, _SEND_DEADLINE_S)
        elif size:
            self.link.send(b"".join(parts), _SEND_DEADLINE_S)
        if size and not self._has_left and self._send_window.sent(size, self._clock.mono()):
            self._pings.append(True)
            self.link.send(b"PING\r\n", _SEND_DEADLINE_S)

    def _report(self, failed: dict[bytes, StoreError]) -> None:
        if self._full.allow(self._clock.mono()):
            for name, error in failed.items():
                shown = name.decode("utf-8", "backslashreplace")
                if name and not is_client_key(name):
                    log.error(f'publishes to channel "{shown}" fail: {error.text}')
                else:
                    who = f'client "{shown[1:]}": ' if name else ""
                    log.error(f"connections fail: {who}{error.text}")

    def turn_away(self) -> int:
        """Refuse new clients from now on; returns how many are registered."""
        self.broker.draining = True
        return len(self.broker.clients)

    # ---- other partitions
    # ----------------------------------------------------------------------------------------

    def known_clients(self) -> list[ClientInfo]:
        """The clients that are registered."""
        return [client.info for client in self.broker.clients.values()]

    def learn_clients(self, infos: list[ClientInfo]) -> None:
        """Register clients that another partition knows."""
        self.broker.connections.learn(infos)
        # What they are recorded with must not wait until somebody says something.
        self._more = True

    def set_limits(self, limits: StoreLimits) -> list[str]:
        """Other limits from now on; returns lines that say what changed, none if nothing did.

        Call it between turns.

        What happens to what is there already: ``Broker.set_limits``. Raises ``ConfigError``:
        nothing has changed.
        """
        check_limits(limits)
        return self.broker.set_limits(limits)

    # ---- channels that move to other partitions, or come from one
    # ---------------------------------------------------------------------------------------

    def send(self, lines: bytes) -> Future[None]:
        """Send lines that subscribe, or take that back.

        Settled when NATS has processed them, and what it had sent before is applied: at the next
        call on this thread it is committed and answered, too. Raises ``NatsError``, also as the
        result.
        """
        if not self.link.connected or not self.ready:
            raise ConnectionLostError("nats: not connected")
        done: Future[None] = Future()
        # Nobody cancels it: whoever waits has a deadline of its own.
        done.set_running_or_notify_cancel()
        self.link.send(lines + b"PING\r\n", _SEND_DEADLINE_S)
        self._pings.append(done)
        return done

    def subscribe(self, lines: bytes) -> None:
        """Send lines that subscribe to what the broker listens to by now: a connection that is made
        later subscribes to all of that.
        """
        if self.link.connected:
            with contextlib.suppress(NatsError):
                self.link.send(lines, _SEND_DEADLINE_S)

    def go_on(self) -> None:
        """Take a turn soon: something was staged beside what clients have sent."""
        self._more = True

    @property
    def is_noting(self) -> bool:
        """Whether publishes are noted for a successor already, or one follows soon."""
        return bool(self._noting) or self._has_left

    def leave_out(self, answered: Mapping[tuple[bytes, bytes], int]) -> None:
        """Leave these publishes out, so often each, which another server has answered: now, and as
        long as a copy of one may come late.
        """
        known = self.broker.answered or {}
        self.broker.answered = {
            key: known.get(key, 0) + answered.get(key, 0) for key in {*known, *answered}
        }
        if self.broker.taken is None:
            # A successor of ours would get such a copy, too.
            self.broker.taken = []
        self._forget_at = self._clock.mono() + _LATE_COPIES_S

    # ---- planned hand-over
    # ---------------------------------------------------------------------------------------

    def note_taken(self, user: str, *, on: bool) -> None:
        """Begin to note every publish that is taken for ``user``, or stop that; with several users
        it ends when the last one stops it.

        Behind a hand-over that is no older than a late copy may be, what the predecessor answered
        is named as well, and all that was taken since: a copy of it may still be on its way to
        whoever follows us.
        """
        was_on = bool(self._noting)
        (self._noting.add if on else self._noting.discard)(user)
        if bool(self._noting) == was_on:
            return
        self._named_too = self._before_us if on else []
        if self.broker.answered is None:
            self.broker.taken = [] if on else None

    @property
    def _is_gone(self) -> bool:
        """Whether the hand-over is behind us: clients are the successor's, and nothing is read,
        stored or sent.
        """
        return self._has_left and self._leaving is None

    def leave(self) -> Future[list[PublishKey]]:
        """Listen to clients no more, for good.

        The result are the publishes noted, once all of them are answered.

        There is no way back: a successor keeps what is published from now on, so a publish that
        this server took again, after a reconnect for instance, would be stored twice. Raises
        ``ConnectionLostError`` if the link is down, also as the result if it breaks meanwhile.
        """
        self._has_left = True
        self.broker.pending_registrations.give_up()
        # Readers are the successor's: a long way to go must not keep publishers waiting.
        self.broker.budget = 0
        self._leave_by = self._clock.mono() + _REQUESTS_S
        self.link.send(self.broker.unsubscribe_lines() + b"PING\r\n", _SEND_DEADLINE_S)
        self._expect_pong()
        self.ready = False
        self._leaving = Future()
        return self._leaving

    def _left(self) -> None:
        """NATS has given us everything that it had, and every publish of it is answered."""
        leaving = self._leaving
        self._leaving = None
        assert leaving is not None
        # Whoever asked has a deadline, which a slow commit can outlast.
        if leaving.set_running_or_notify_cancel():
            leaving.set_result(self._named_too + (self.broker.taken or []))
        self.broker.taken = None

    # ---- stopping
    # ----------------------------------------------------------------------------------------------

    def prepare_stop(self) -> bool:
        """Do some of a stop's work beside serving; returns whether more of it is worth the while.

        Raises ``FencedError``. What else fails is left to the stop.
        """
        try:
            if self.broker.later:
                self._open_channels(_PREPARE_S)
                return True
            return self.store.prepare_close(_PREPARE_S)
        except StoreError:
            return False

    def stop(self, *, tidy: bool = True) -> None:
        """Finish: what was applied is committed and answered, the store is closed.

        Not ``tidy``: what a takeover can do without is left undone, for somebody waits for the
        store.
        """
        if self.broker.later:
            # What was applied comes first: storage may refuse to open a channel.
            self._last_road()
        while tidy and self.broker.later:
            # By the broker, because the store knows nothing of clients: a subscription may have
            # lost its own.
            self.broker.open_next()
        if not self.broker.later:
            # Else whoever waits for the store would wait for every channel, too. That the client is
            # gone is stored, and the next start closes what is left of it, as after a crash.
            self.broker.closing.finish()
        self._last_road()
        self.store.confirm()
        if tidy:
            self.store.close()
            return
        self.store.write_events()
        while self.store.catch_up():
            pass
        self.store.abandon()

    def _last_road(self) -> None:
        """Commit and confirm what was applied also where the link is down.

        Nobody is answered then.
        """
        try:
            self._commit_and_send()
        except NatsError as error:
            self._lost(error)
