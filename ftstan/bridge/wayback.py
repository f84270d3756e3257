"""The way back: what new publishers send goes to the channel, and from there into the stream.

New publishers publish to the channel's name, as they will after the cut-over. Until then that is
the subject of another stream, the *inlet*, and this publishes its messages to the channel, in
order. So the channel alone decides the order, everybody reads the same, and stream and channel keep
the same sequences.

Never twice, never skipped: each message has its place in the inlet in its reply field (an
*origin*), one is on its way at a time, and the inlet is purged up to what the server has
acknowledged. Whenever it is not known whether a message was stored, the session at the streaming
server is ended and another one begun: what the former one may still have on its way is refused from
then on. Then the stream is read, once it has all that the channel has, and the highest origin in it
says where to go on.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import ConfigError, FtstanError, NatsError, StoreError, WireError
from ftstan.bridge import marks, names
from ftstan.bridge.channelend import look_at_end
from ftstan.bridge.errors import BridgeError
from ftstan.bridge.target import ASK_S
from ftstan.client import ClientError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.bridge.channelend import Looking
    from ftstan.bridge.feed import Feed
    from ftstan.bridge.target import StreamState, Target

_IDLE_S: Final = 0.1
_AGAIN_S: Final = 1.0
_CONNECT_S: Final = 5.0
_AT_ONCE: Final = 256
_BYTES_AT_ONCE: Final = 1 << 20
#: Messages of the stream that are looked at together for an origin.
_LOOK: Final = 1000
_LOOK_BYTES: Final = 8 << 20
#: How far the clocks of the streaming servers and of JetStream may be apart.
_SKEW_NS: Final = 300 * 1_000_000_000


class _LaterError(Exception):
    """The inlet is not made yet, or the stream does not have yet what the channel has."""


@dataclass(slots=True, eq=False)
class Inlet:
    """What new publishers send for one channel. ``next``: the sequence that goes to the channel
    next, 0 while that is not known.

    ``waiting``: messages that were in the inlet at the last look; ``copies``: those that a bridge
    had brought, which are passed over.
    """

    channel: str
    stream: str
    next: int = 0
    purged: int = 0
    published: int = 0
    waiting: int = 0
    copies: int = 0
    id: str = ""
    trouble: str = ""
    error: FtstanError | None = None

    @property
    def name(self) -> str:
        """The stream that takes them."""
        return names.inlet_name(self.stream)

    @property
    def label(self) -> str:
        """What origins name it by: one that was made anew counts from 1 again."""
        return f"{self.name}.{self.id}"


class WayBack:
    """``target``, ``feed`` and ``look`` are its own, for its thread alone. Start it, stop it."""

    def __init__(
        self,
        target: Target,
        feed: Feed,
        inlets: Sequence[Inlet],
        look: Looking,
        say: Callable[[str], None],
    ) -> None:
        self._target = target
        self._js = target.js
        self._feed = feed
        self._inlets = inlets
        self._look_at = look
        self._say = say
        self._stopping = threading.Event()
        self._is_fresh = False
        """Whether nothing of this session is in doubt."""
        self._thread = threading.Thread(target=self._run, name="way back", daemon=True)

    def start(self) -> None:
        """Begin. The feed is open."""
        self._is_fresh = True
        self._thread.start()

    def stop(self) -> None:
        """End after the message that is on its way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            is_busy = False
            for inlet in self._inlets:
                if inlet.error is None and not self._stopping.is_set():
                    is_busy |= self._guarded(inlet)
            if not is_busy:
                self._stopping.wait(_IDLE_S)

    def _guarded(self, inlet: Inlet) -> bool:
        """One turn of a channel; tells whether there is more to do at once."""
        try:
            if not self._js.connected:
                self._js.connect(_CONNECT_S)
            return self._step(inlet)
        except _LaterError:
            self._stopping.wait(_IDLE_S)
        except (BridgeError, ConfigError, StoreError) as error:
            inlet.error = error
            self._say(f"{inlet.channel}: the way back has stopped: {error.text}; {error.hint}")
        except (NatsError, WireError, ClientError) as error:
            if inlet.trouble != error.text:
                inlet.trouble = error.text
                self._say(f"{inlet.channel}: the way back: {error.text}; trying again")
            self._stopping.wait(_AGAIN_S)
        return False

    def _step(self, inlet: Inlet) -> bool:
        if not inlet.next:
            self._find_place(inlet)
        batch = self._js.get(inlet.name, inlet.next, _AT_ONCE, _BYTES_AT_ONCE, ASK_S)
        for (sequence, _, data), headers in zip(batch.rows, batch.headers, strict=True):
            if self._stopping.is_set():
                break
            if sequence > inlet.next:
                self._say_gone(inlet, sequence)
            if marks.is_copy(headers):
                inlet.copies += 1
                self._say(
                    f"{inlet.channel}: message {sequence} of {inlet.name} is a copy that a bridge "
                    "has made: not published"
                )
            else:
                self._publish(inlet, data, sequence)
            inlet.next = sequence + 1
        if inlet.next - 1 > inlet.purged:
            # The server has acknowledged them: they are in the channel.
            self._target.purge_to(inlet.name, inlet.next)
            inlet.purged = inlet.next - 1
        inlet.trouble = ""
        inlet.waiting = self._look(inlet).messages
        return bool(batch.rows)

    def _publish(self, inlet: Inlet, data: bytes, sequence: int) -> None:
        try:
            self._feed.publish(inlet.channel, data, marks.origin(inlet.label, sequence))
        except InvalidArgumentError as error:
            raise BridgeError(
                f'message {sequence} of "{inlet.name}" cannot be published to the channel: '
                f"{error.text}",
                hint="raise max_payload of the NATS servers of the streaming server",
            ) from error
        except ClientError:
            inlet.next = 0
            self._is_fresh = False
            raise
        inlet.published += 1

    def _say_gone(self, inlet: Inlet, found: int) -> None:
        self._say(
            f"{inlet.channel}: messages {inlet.next} to {found - 1} of {inlet.name} are gone, and "
            "do not go to the channel: somebody has removed them"
        )

    # ---- where to go on

    def _find_place(self, inlet: Inlet) -> None:
        """Find out what is in the channel already. Raises ``_LaterError``, and as ``_step``."""
        if not self._is_fresh:
            self._feed.renew()
            self._is_fresh = True
        state = self._look(inlet)
        if not state.messages:
            # What was purged is in the channel.
            inlet.next = state.last + 1
            inlet.purged = state.last
            return
        # In a session that began after the last doubt.
        end, has_any = look_at_end(self._feed, inlet.channel, self._look_at)
        stream = self._target.look(inlet.stream)
        if stream is None and end and not has_any:
            # Everything has expired before there was a stream: only the next message makes it.
            inlet.next = state.first
            return
        if (stream.last if stream is not None else 0) < end:
            if stream is not None and not has_any:
                raise _expired(inlet, stream.last, end)
            raise _LaterError
        known, data = self._last_origin(inlet, stream) if stream is not None else (0, b"")
        self._check_same(inlet, state, known, data)
        if not known and stream is not None and self._may_have_lost(inlet, state, stream):
            raise BridgeError(
                f"it cannot be told whether messages {state.first} to {state.last} of "
                f'"{inlet.name}" are in the channel: what the stream "{inlet.stream}" still has '
                "is younger",
                hint=f"look for them, purge those that are (nats stream purge {inlet.name} --seq), "
                "and start the bridge again; a stream that keeps more avoids this",
            )
        inlet.purged = state.first - 1
        inlet.next = max(known + 1, state.first)
        if known and state.first > known + 1:
            inlet.next = known + 1
            self._say_gone(inlet, state.first)
            inlet.next = state.first

    def _check_same(self, inlet: Inlet, state: StreamState, known: int, data: bytes) -> None:
        """Whether the inlet still has what it had: JetStream can lose messages in a power cut, and
        their numbers then come again. Raises ``BridgeError``.
        """
        if state.last < known:
            raise _gone_back(inlet, state.last, known)
        if state.first <= known:
            batch = self._js.get(inlet.name, known, 1, _LOOK_BYTES, ASK_S)
            if not batch.rows:
                raise _LaterError
            if (batch.rows[0][0], batch.rows[0][2]) != (known, data):
                raise _gone_back(inlet, known - 1, known)

    def _last_origin(self, inlet: Inlet, stream: StreamState) -> tuple[int, bytes]:
        """The highest place in the inlet of a message in the stream, and its data; 0 if there is
        none.
        """
        end = stream.last
        while end >= stream.first and stream.messages:
            begin = max(end - _LOOK + 1, stream.first)
            found = (0, b"")
            at = begin
            while at <= end:
                batch = self._js.get(inlet.stream, at, end - at + 1, _LOOK_BYTES, ASK_S)
                if not batch.rows:
                    # A copy of the stream that is behind has answered.
                    raise _LaterError
                for row, headers in zip(batch.rows, batch.headers, strict=True):
                    found = max(found, (marks.origin_in(headers, inlet.label), row[2]))
                at = batch.rows[-1][0] + 1
            if found[0]:
                return found
            end = begin - 1
        return 0, b""

    def _may_have_lost(self, inlet: Inlet, state: StreamState, stream: StreamState) -> bool:
        """Whether the stream may have had origins, and has dropped them all.

        What was published from the inlet was stored in the channel after it came into the inlet:
        if the stream goes back further than that, it would have it.
        """
        if not stream.has_dropped:
            return False
        if not stream.messages:
            return True
        oldest = self._target.message(inlet.stream, stream.first)
        if oldest is None or oldest.mark is None:
            return True
        return oldest.mark.timestamp > state.first_ns - _SKEW_NS

    def _look(self, inlet: Inlet) -> StreamState:
        state = self._target.look(inlet.name)
        if state is None and not inlet.id:
            raise _LaterError
        if state is None or state.inlet_id != inlet.id != "":
            raise BridgeError(
                f'the stream "{inlet.name}" is gone: somebody has deleted it',
                hint="what was in it and not in the channel is lost; start the bridge again",
            )
        inlet.id = state.inlet_id
        if state.last < inlet.next - 1:
            raise _gone_back(inlet, state.last, inlet.next - 1)
        return state


def _gone_back(inlet: Inlet, last: int, known: int) -> BridgeError:
    return BridgeError(
        f'the stream "{inlet.name}" ends at {last}, and had {known}: it has lost messages that '
        "are in the channel",
        hint=f"what has its numbers {last + 1} and above now would not be published: have new "
        "publishers send it again, delete the stream, and start the bridge again",
    )


def _expired(inlet: Inlet, last: int, end: int) -> NatsError:
    return NatsError(
        f'the messages {last + 1} to {end} of "{inlet.channel}" have expired before they were '
        "mirrored: waiting for the channel's next message"
    )
