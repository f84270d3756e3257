"""The run of a bridge: one thread that reads logs, takes what tails bring, and appends to streams.

Each append says which sequence it follows, so whatever is lost, repeated or late on its way can
only be refused. When an append is, or its answer does not come, the stream is asked how far it is,
and that is where the channel goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftstan.base.errors import ConfigError, FtstanError, NatsError, StoreError
from ftstan.bridge import feed as feeding
from ftstan.bridge import metrics
from ftstan.bridge.errors import BridgeError, SecondBridgeError
from ftstan.bridge.feed import Feed, item_of
from ftstan.bridge.gaps import Gaps
from ftstan.bridge.marks import Framer, origin_of
from ftstan.bridge.mirror import Gap, Mirror, Stage
from ftstan.bridge.names import private_subject
from ftstan.bridge.outlet import Outlet
from ftstan.bridge.target import hint_of, problem_of
from ftstan.client import ClientError, Start
from ftstan.nats.jetstream import NO_RESPONDERS
from ftstan.nats.link import ConnectionLostError
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.base.clock import Clock
    from ftstan.bridge.backlog import LogFiles
    from ftstan.bridge.feed import Connecting
    from ftstan.bridge.marks import Item
    from ftstan.bridge.target import StreamState, Target
    from ftstan.bridge.wayback import Inlet
    from ftstan.client import Message
    from ftstan.nats.jetstream import JetStream

_AGAIN_S: Final = 0.25
_NO_ROOM_AGAIN_S: Final = 5.0
#: An append without an answer for so long is asked after.
_UNANSWERED_S: Final = 5.0
#: For a message that is missing among those of the tail.
_MISSING_S: Final = 1.0
_LAST_ANSWERS_S: Final = 5.0
_TICK_S: Final = 0.5
_METRICS_S: Final = 5.0
#: How often a stream is looked at whether the channel has moved into it.
_LOOK_S: Final = 2.0
_CHUNK: Final = 64
#: So few new messages since the last look at the files, and the tail takes over.
_NEARLY_LEVEL: Final = 5000
#: How often another run may have been quicker before it counts as a second bridge: what a bridge
#: that was killed had sent may still arrive.
_FOREIGN: Final = 3
_WRONG_LAST: Final = 10071
_TOO_LARGE: Final = 10054
_RIGHTS: Final = "the login needs the rights that docs/jetstream.md lists"
_DENIED: Final = "permissions violation"


class Bridge:
    """Mirrors ``mirrors``. ``connecting`` makes the session; ``files``: where backlogs are read,
    ``None``: from the server.

    ``say`` gets each line for the operator. ``purge_at_gap``: where messages have expired before
    they were mirrored, the stream begins behind them, as the channel does. ``metrics_file``: what
    is written for Prometheus, empty for nothing; ``inlets``: what of the way back is in there.
    """

    def __init__(
        self,
        target: Target,
        connecting: Connecting,
        files: LogFiles | None,
        mirrors: Sequence[Mirror],
        *,
        clock: Clock,
        say: Callable[[str], None],
        purge_at_gap: bool = False,
        once: bool = False,
        metrics_file: str = "",
        inlets: Sequence[Inlet] = (),
    ) -> None:
        self._target = target
        self._js: JetStream = target.js
        self._outlet = Outlet(self._js, say)
        self._feed = Feed(connecting, self.wake, say)
        self._files = files
        self._mirrors = mirrors
        self._clock = clock
        self._say = say
        self._once = once
        self._metrics_file = metrics_file
        self._inlets = inlets
        self._metrics_at = 0.0
        self._id = Nuid().next()
        self._stopping = False
        self._js.on_late = self._on_answer
        self._gaps = Gaps(
            *(target, self._feed, files),
            purges=purge_at_gap,
            say=say,
            follow=self._follow,
            begin_anew=self._attempt,
        )

    def wake(self) -> None:
        """Have the loop look again. Any thread may call it."""
        self._outlet.wake()

    def stop(self) -> None:
        """End ``run`` soon, once what was sent is answered. A signal handler may call it."""
        self._stopping = True
        self.wake()

    def open(self) -> None:
        """Connect to the streaming server. Raises ``ClientError``, ``ConfigError``."""
        self._feed.open()

    def close(self) -> None:
        """End the session, and release what the loop waits on."""
        self._feed.close()
        self._outlet.close()

    # ---- before the first write

    def prepare(self) -> None:
        """Compare every channel with its stream; nothing is written.

        Raises ``BridgeError``, ``ConfigError``, ``StoreError``, ``NatsError``, ``ClientError``.
        """
        try:
            self._target.check()
            for mirror in self._mirrors:
                self._look(mirror)
            self._require_one_live()
        except ConnectionLostError as error:
            raise NatsError(
                error.text, hint=_RIGHTS if _DENIED in error.text.lower() else ""
            ) from error

    def _require_one_live(self) -> None:
        """Channels that have moved do not keep the others from going on; alone they are told."""
        if not any(mirror.is_live for mirror in self._mirrors):
            mirror = self._mirrors[0]
            raise BridgeError(
                f'the channel "{mirror.channel}" has moved into the stream "{mirror.stream}" at '
                f"{mirror.acked}",
                hint=f"to take that back: ftstanctl bridge undo --channel {mirror.channel}",
            )

    def _look(self, mirror: Mirror) -> None:
        if self._files is not None:
            mirror.extent = self._files.extent(mirror.channel)
        state = self._target.look(mirror.stream)
        if state is not None:
            self._compare(mirror, state)
        if not mirror.is_live:
            return
        if mirror.two_way:
            self._target.check_inlet(mirror.stream, mirror.channel)
        self._target.check_subject(mirror.stream, mirror.channel)

    def _compare(self, mirror: Mirror, state: StreamState) -> None:
        wrong = self._target.differences(
            mirror.stream, mirror.channel, state, two_way=mirror.two_way
        )
        if not wrong and state.moved is not None:
            mirror.exists = True
            mirror.begin_at(state.moved)
            self._ended_by_move(mirror, state)
            return
        if wrong:
            raise BridgeError(
                f'the stream "{mirror.stream}" for the channel "{mirror.channel}" exists, and is '
                f"another one: {'; '.join(wrong)}",
                hint="say what it has (--replicas, --storage, --max-msgs, --max-bytes, --max-age), "
                "or name another one: --stream CHANNEL=NAME",
            )
        mirror.exists = True
        mirror.begin_at(state.last)
        mirror.is_empty = state.messages == 0
        if state.messages:
            self._compare_last(mirror, state.last)

    def _compare_last(self, mirror: Mirror, last: int) -> None:
        """Whether the last message of the stream is that of the channel."""
        held = self._target.message(mirror.stream, last)
        if held is None:
            return
        own = self._own(mirror, last)
        if (
            held.mark is None
            and own is not None
            and own.sequence == last
            and own.data == held.data
            and origin_of(own.reply, mirror.stream) == last
        ):
            # It came from here: the cut-over was taken back.
            return
        if held.mark is None or (held.mark.channel, held.mark.sequence) != (mirror.channel, last):
            raise _stranger(mirror, last)
        if own is not None and own.sequence == last:
            if (own.timestamp, own.data) != (held.mark.timestamp, held.data):
                raise _other_content(mirror, last)
            return
        if own is not None:
            return  # it has expired
        end = mirror.extent.last if mirror.extent is not None else 0
        if (newest := self._feed.read_one(mirror.channel, Start.last())) is not None:
            end = max(end, newest.sequence)
        if 0 < end < last:
            raise BridgeError(
                f'the stream "{mirror.stream}" ends at {last}, and the channel '
                f'"{mirror.channel}" at {end}: it is not the channel that was mirrored',
                hint="was the datastore replaced? name another stream: --stream CHANNEL=NAME",
            )

    def _own(self, mirror: Mirror, sequence: int) -> Item | None:
        """The channel's first message from ``sequence`` on."""
        extent = mirror.extent
        # Behind the backlog the server is asked: it may have been given other files.
        is_begun = mirror.stage is Stage.TAIL
        if (
            self._files is not None
            and extent is not None
            and not is_begun
            and sequence <= extent.last
        ):
            for items in self._files.items(mirror.channel, sequence):
                return items[0]
        return self._feed.read_one(mirror.channel, Start.sequence(sequence))

    # ---- running

    def run(self) -> None:
        """Mirror until ``stop``, or with ``once`` until every channel is level.

        A channel that cannot go on is stopped, said, and the others go on; its ``error`` is set.
        Raises ``BridgeError`` when no session is left.
        """
        if self._metrics_file:
            metrics.write(self._metrics_file, self._mirrors, self._inlets)
        for mirror in self._mirrors:
            if mirror.is_live:
                self._begin(mirror)
        while not self._stopping and any(mirror.is_live for mirror in self._mirrors):
            self._turn()
            if self._metrics_file and self._clock.mono() >= self._metrics_at:
                self._write_metrics()
            if self._feed.closed:
                raise feeding.replaced()
            if self._once and all(self._is_level(m) for m in self._mirrors if m.is_live):
                break
        self._await_answers()
        if self._metrics_file:
            self._write_metrics()

    def _write_metrics(self) -> None:
        self._metrics_at = self._clock.mono() + _METRICS_S
        try:
            metrics.write(self._metrics_file, self._mirrors, self._inlets)
        except ConfigError as error:
            # Channels go on: whoever reads the file sees that it is old.
            self._say(error.text)

    def _turn(self) -> None:
        if not self._outlet.connected:
            if not self._outlet.connect():
                return
            for mirror in self._mirrors:
                if mirror.is_live:
                    mirror.again_at = self._clock.mono()
        is_busy = False
        try:
            for mirror in self._mirrors:
                if mirror.is_live:
                    is_busy |= self._guarded(mirror, self._step)
            self._outlet.flush()
            self._outlet.listen(0.0 if is_busy else _TICK_S, self._take_answers)
        except ConnectionLostError as error:
            self._on_lost(error)

    def _guarded(self, mirror: Mirror, work: Callable[[Mirror], bool]) -> bool:
        """Do a channel's work; what ends it ends this channel alone."""
        try:
            return work(mirror)
        except ConnectionLostError:
            raise
        except (BridgeError, ConfigError, StoreError) as error:
            self._end(mirror, error)
        except (NatsError, ClientError) as error:
            self._later(mirror, error.text, _AGAIN_S)
        return False

    def _make_two_way(self, mirror: Mirror) -> None:
        """Have new publishers' messages go to an inlet, for the way back."""
        if mirror.exists:
            state = self._target.look(mirror.stream)
            if state is not None and self._ended_by_move(mirror, state):
                # Since the comparison: the channel's name is that of the stream alone now.
                return
            if state is not None and not state.is_two_way:
                self._target.set_two_way(state, mirror.stream)
        self._target.make_inlet(mirror.stream, mirror.channel)
        mirror.is_ready = True

    def _begin(self, mirror: Mirror) -> None:
        """Where the channel's messages come from first."""
        if self._files is None:
            mirror.stage = Stage.TAIL
            self._follow(mirror)
        else:
            assert mirror.extent is not None
            first = max(mirror.next, mirror.extent.first)
            if first <= mirror.extent.last:
                self._say(
                    f"{mirror.channel}: {first} to {mirror.extent.last} from the files, into the "
                    f"stream {mirror.stream}"
                )
        self._attempt(mirror)

    def _attempt(self, mirror: Mirror) -> None:
        """From now on answers to earlier appends mean nothing."""
        mirror.attempt += 1
        token = self._js.inbox(f"{mirror.index}-{mirror.attempt}-")
        subject = private_subject(mirror.channel) if mirror.two_way else mirror.channel
        mirror.framer = Framer(mirror.channel, mirror.stream, self._id, token, subject)
        mirror.progress_at = self._clock.mono()

    def _step(self, mirror: Mirror) -> bool:
        """One channel's turn; tells whether there is more to do at once."""
        now = self._clock.mono()
        if not mirror.is_ready:
            self._make_two_way(mirror)
            if not mirror.is_live:
                return False
        if now >= mirror.look_at:
            mirror.look_at = now + _LOOK_S
            if mirror.exists and not mirror.window and self._has_moved(mirror):
                return False
        if mirror.again_at:
            if now < mirror.again_at:
                return False
            mirror.again_at = 0.0
            self._resync(mirror)
        if mirror.window and now - mirror.progress_at > _UNANSWERED_S:
            self._resync(mirror)
        is_busy = False
        try:
            if mirror.stage is Stage.BACKLOG:
                is_busy = self._read(mirror)
            elif mirror.session == self._feed.lost or self._is_same(mirror):
                self._collect(mirror, now)
            else:
                return False
        except Gap as gap:
            self._gaps.bridge(mirror, gap)
        if mirror.ahead and not mirror.exists:
            self._create(mirror)
        self._send(mirror)
        return is_busy and mirror.has_room

    def _has_moved(self, mirror: Mirror) -> bool:
        """Whether the channel has moved into the stream; then there is nothing more to do."""
        state = self._target.look(mirror.stream)
        return state is not None and self._ended_by_move(mirror, state)

    def _ended_by_move(self, mirror: Mirror, state: StreamState) -> bool:
        if state.moved is None:
            return False
        mirror.stage = Stage.STOPPED
        self._say(
            f"{mirror.channel}: has moved into the stream {mirror.stream} at {state.moved}: "
            "nothing more to mirror"
        )
        return True

    def _send(self, mirror: Mirror) -> None:
        framer = mirror.framer
        assert framer is not None
        if not mirror.ahead or mirror.again_at:
            return
        most = self._outlet.max_payload
        if not mirror.window:
            mirror.progress_at = self._clock.mono()
        while mirror.ahead and mirror.has_room:
            for item in mirror.to_send(_CHUNK):
                head, data = framer.frame(item)
                size = len(head) + len(data)
                if size > most and _size(head) > most:
                    raise BridgeError(
                        f'message {item.sequence} of "{mirror.channel}" has {len(data)} bytes, '
                        f"with its headers {_size(head)}, and the NATS server of JetStream takes "
                        f"{most}",
                        hint="raise max_payload there, then start the bridge again",
                    )
                self._outlet.put(head, data)

    # ---- the backlog

    def _read(self, mirror: Mirror) -> bool:
        assert self._files is not None
        if not mirror.has_room or len(mirror.ahead) >= feeding.MAX_IN_FLIGHT:
            return False
        if mirror.reading is None:
            mirror.reading = self._files.items(mirror.channel, mirror.next)
            mirror.read_before = mirror.read
        try:
            items = next(mirror.reading, None)
        except StoreError:
            # The limits have removed a slice while it was read.
            mirror.reading = None
            extent = self._files.extent(mirror.channel)
            if extent.first <= mirror.next:
                raise
            raise Gap(mirror.next, extent.first) from None
        if items is not None:
            mirror.read += len(items)
            mirror.take(items)
            return True
        mirror.reading = None
        if mirror.read - mirror.read_before > _NEARLY_LEVEL:
            return True
        self._switch(mirror)
        return False

    def _switch(self, mirror: Mirror) -> None:
        """The one change of sources: behind what was read, the server gives the rest."""
        assert self._files is not None
        if mirror.is_empty and not mirror.exists:
            mirror.extent = self._files.extent(mirror.channel)
            if not mirror.ahead:
                mirror.begin_at(mirror.extent.first - 1)
        mirror.stage = Stage.TAIL
        self._say(f"{mirror.channel}: from {mirror.next} on by the durable {feeding.DURABLE}")
        self._follow(mirror)

    def _follow(self, mirror: Mirror) -> None:
        if self._once:
            newest = self._feed.read_one(mirror.channel, Start.last())
            mirror.goal = newest.sequence if newest is not None else 0
        # A stream that does not exist yet begins where the channel does.
        begin = mirror.next if mirror.exists or mirror.next > 1 else 0
        mirror.tail = self._feed.follow(mirror.channel, begin)

    # ---- the tail

    def _collect(self, mirror: Mirror, now: float) -> None:
        tail = mirror.tail
        assert tail is not None
        done: list[Message] = []
        while tail.arrived and len(mirror.ahead) < feeding.MAX_IN_FLIGHT:
            message = tail.arrived.popleft()
            item = item_of(message)
            if not mirror.exists and mirror.is_empty and mirror.next == 1:
                mirror.begin_at(item.sequence - 1)
            if not mirror.take_delivery(item, now):
                self._check_repeat(mirror, item)
                if item.sequence <= mirror.acked:
                    done.append(message)
                    continue
            mirror.deliveries.setdefault(item.sequence, []).append(message)
        if done:
            self._feed.ack(done)
        if mirror.held and now - mirror.held_since > _MISSING_S:
            self._gaps.look_for(mirror, now)

    def _is_same(self, mirror: Mirror) -> bool:
        """Whether the channel of a new session is the one that was mirrored; false if that cannot
        be told now.

        A memory server that was started anew counts from 1, and may have come far meanwhile.
        Raises ``BridgeError`` if it is another one.
        """
        session = self._feed.lost
        if not self._feed.connected:
            return False
        if mirror.exists and mirror.acked:
            self._compare_last(mirror, mirror.acked)
        mirror.session = session
        return True

    def _check_repeat(self, mirror: Mirror, item: Item) -> None:
        """A message of a sequence that is in the stream must be the one that is there."""
        if mirror.times.get(item.sequence) == item.timestamp or item.sequence > mirror.acked:
            return
        held = self._target.message(mirror.stream, item.sequence)
        if held is not None and (held.mark is None or held.mark.timestamp != item.timestamp):
            raise _other_content(mirror, item.sequence)

    # ---- JetStream

    def _create(self, mirror: Mirror) -> None:
        first = mirror.ahead[0].sequence
        self._target.create(mirror.stream, mirror.channel, first, two_way=mirror.two_way)
        mirror.exists = True
        self._say(f"{mirror.channel}: the stream {mirror.stream} is made, from {first} on")

    def _on_lost(self, error: ConnectionLostError) -> None:
        self._outlet.drop()
        denied = error.text.lower()
        if _DENIED in denied:
            for mirror in self._mirrors:
                if f'"{mirror.channel}"' in error.text or f'.{mirror.stream}"' in error.text:
                    self._end(
                        mirror,
                        BridgeError(
                            f'channel "{mirror.channel}": {error.text}',
                            hint=_RIGHTS,
                        ),
                    )
                    return
        self._outlet.lost(error.text)

    def _on_answer(self, token: bytes, status: int, payload: bytes) -> None:
        index, hyphen, rest = token.partition(b"-")
        if not hyphen:
            return  # a request's, that came too late
        attempt, _, number = rest.partition(b"-")
        mirror = self._mirrors[int(index)]
        sequence = int(number)
        if int(attempt) != mirror.attempt:
            return
        if status:
            what = "nobody takes" if status == NO_RESPONDERS else "JetStream refuses"
            self._later(mirror, f"{what} messages for the stream {mirror.stream}", _AGAIN_S)
            return
        # Nearly all answers are these, and a parser of JSON takes longer than all the rest.
        if payload != mirror.answer % sequence:
            code, text = problem_of(bytes(payload), sequence)
            if code or text:
                self._refused(mirror, sequence, code, text)
                return
        mirror.proved = max(mirror.proved, sequence)

    def _take_answers(self) -> bool:
        """Read what JetStream has sent, and carry on from it; tells whether there was anything."""
        any_came = self._js.drain()
        for mirror in self._mirrors:
            if mirror.proved > mirror.acked and mirror.is_live:
                mirror.progress_at = self._clock.mono()
                mirror.has_written = True
                mirror.trouble = ""
                done = mirror.confirm(mirror.proved)
                if done:
                    self._feed.ack(done)
        return any_came

    def _refused(self, mirror: Mirror, sequence: int, code: int, text: str) -> None:
        if code == _WRONG_LAST:
            mirror.again_at = self._clock.mono()
            mirror.attempt += 1  # what follows is refused, too
            return
        if code == _TOO_LARGE:
            self._end(
                mirror,
                BridgeError(
                    f'message {sequence} of "{mirror.channel}": JetStream says: {text}',
                    hint=f'raise max_msg_size of the stream "{mirror.stream}"',
                ),
            )
            return
        told = f'channel "{mirror.channel}": JetStream says: {text}'
        if self._once:
            self._end(mirror, BridgeError(told, hint=hint_of(code)))
            return
        self._later(mirror, f"{told}; {hint_of(code)}", _NO_ROOM_AGAIN_S)

    def _later(self, mirror: Mirror, text: str, seconds: float) -> None:
        """Ask the stream how far it is, after so many seconds."""
        mirror.again_at = self._clock.mono() + seconds
        mirror.attempt += 1
        if mirror.trouble != text:
            mirror.trouble = text
            self._say(f"{text}; trying again")

    def _resync(self, mirror: Mirror) -> None:
        """Find out how far the stream is, and go on from there.

        Raises ``BridgeError`` if it is not our stream any more, ``NatsError``.
        """
        self._attempt(mirror)
        mirror.resyncs += 1
        if not mirror.exists:
            return
        state = self._target.look(mirror.stream)
        if state is None:
            raise BridgeError(
                f'the stream "{mirror.stream}" is gone: somebody has deleted it',
                hint=f'start the bridge again to mirror "{mirror.channel}" from its beginning',
            )
        if self._ended_by_move(mirror, state):
            return
        if state.last < mirror.acked:
            raise BridgeError(
                f'the stream "{mirror.stream}" ends at {state.last}, and had acknowledged '
                f"{mirror.acked}: it was made anew, or has lost messages",
                hint="find out what happened to it; then start the bridge again",
            )
        if state.last > mirror.acked:
            self._judge_last(mirror, state)
        done = mirror.rewind(state.last)
        if done:
            self._feed.ack(done)
        if mirror.stage is Stage.BACKLOG:
            mirror.reading = None

    def _judge_last(self, mirror: Mirror, state: StreamState) -> None:
        """Messages were appended of which we have no answer: were they ours?"""
        held = self._target.message(mirror.stream, state.last)
        if held is None:
            return
        mark = held.mark
        if mark is None or (mark.channel, mark.sequence) != (mirror.channel, state.last):
            raise _stranger(mirror, state.last)
        if mark.bridge == self._id:
            mirror.has_written = True
            return
        mirror.foreign += 1
        if mirror.has_written or mirror.foreign >= _FOREIGN:
            raise SecondBridgeError(
                f'another bridge mirrors "{mirror.channel}" into the stream "{mirror.stream}": '
                f"it has appended {state.last}",
                hint="leave one of the two running",
            )

    # ---- ending

    def _end(self, mirror: Mirror, error: FtstanError) -> None:
        mirror.stage = Stage.STOPPED
        mirror.error = error
        self._say(f"{mirror.channel}: stopped at {mirror.acked}: {error.text}")

    def _is_level(self, mirror: Mirror) -> bool:
        return (
            mirror.stage is Stage.TAIL
            and not mirror.ahead
            and not mirror.window
            and mirror.acked >= mirror.goal
        )

    def _await_answers(self) -> None:
        """Take the answers to what was sent, and acknowledge what they are about."""
        end = self._clock.mono() + _LAST_ANSWERS_S
        while (
            self._js.connected
            and any(m.is_live and m.window and not m.again_at for m in self._mirrors)
            and self._clock.mono() < end
        ):
            try:
                self._js.link.wait(_TICK_S)
                self._take_answers()
            except ConnectionLostError:
                return


def _size(head: bytes) -> int:
    """Bytes that count against ``max_payload``: the last word of the control line."""
    return int(head[: head.index(b"\r\n")].rpartition(b" ")[2])


def _stranger(mirror: Mirror, sequence: int) -> BridgeError:
    return BridgeError(
        f'message {sequence} of the stream "{mirror.stream}" was not mirrored from the channel '
        f'"{mirror.channel}": somebody else publishes to it',
        hint="until the cut-over nobody but the bridge may publish to the stream's subject",
    )


def _other_content(mirror: Mirror, sequence: int) -> BridgeError:
    return BridgeError(
        f'message {sequence} of the stream "{mirror.stream}" is another one than that of the '
        f'channel "{mirror.channel}": the channel has begun anew',
        hint="name another stream: --stream CHANNEL=NAME, or delete this one",
    )
