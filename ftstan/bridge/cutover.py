"""The cut-over of one channel into its stream, and the way out of it.

Cut over: new publishers are refused for a moment (the inlet is closed), what they had sent goes to
the channel, the channel is marked as moved, the stream gets the rest, and the channel's name
becomes the stream's subject. From then on the stream decides.

Undo: the channel's name is the inlet's subject again; what came into the stream since the cut-over
is published to the channel, which still refuses everybody else, so each message has the sequence in
the channel that it has in the stream; then the channel takes publishes again.

Every step can be done again: whoever was killed on the way starts the same command anew. Where a
cut-over cannot be finished in time, it is taken back by itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ftstan.base.errors import FtstanError, NatsError
from ftstan.bridge import marks, names
from ftstan.bridge.channelend import channel_end
from ftstan.bridge.errors import BridgeError
from ftstan.bridge.target import ASK_S
from ftstan.client import ClientError, Start
from ftstan.nats.jetstream import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.bridge.feed import Feed
    from ftstan.bridge.target import StreamState, Target

_LOOK_S: Final = 0.2
#: A closed inlet must have been empty, and without a new message, for so long: a server that has
#: not heard yet that it is closed may still take one.
_QUIET_S: Final = 2.0
_AT_ONCE: Final = 256
_BYTES_AT_ONCE: Final = 1 << 20
#: So often in a row the session may fail before an undo ends; it can be started again.
_FAILURES: Final = 10
_AGAIN_S: Final = 1.0


class Mover(Protocol):
    """Marks channels at the streaming server. Every method raises ``FtstanError``."""

    def is_moved(self, channel: str) -> bool:
        """Whether the channel is marked."""
        ...

    def look(self, channel: str) -> tuple[int, int]:
        """Messages and last sequence of the channel."""
        ...

    def mark(self, channel: str, *, on: bool) -> int:
        """Mark the channel, or take the mark away; gives its last sequence."""
        ...


@dataclass(frozen=True, slots=True)
class Move:
    """One channel on its way. ``wait``: seconds for each step that others have to do.

    ``say`` gets a line for each step.
    """

    target: Target
    mover: Mover
    channel: str
    stream: str
    wait: float
    say: Callable[[str], None]

    def cut_over(self) -> int:
        """Let the stream be the channel; gives the channel's last sequence.

        Raises ``BridgeError``, ``NatsError`` and what the mover raises; what was begun is taken
        back then, as far as that is possible.
        """
        state = self._stream()
        if state.moved is not None:
            if state.is_two_way or not self.mover.is_moved(self.channel):
                # New publishers have the inlet again, or old ones the channel.
                raise BridgeError(
                    f'the channel "{self.channel}" has moved at {state.moved}, and an undo has '
                    "begun",
                    hint=f"finish that first: ftstanctl bridge undo {self.channel}",
                )
            self.say(f"{self.channel}: has moved already, at {state.moved}")
            return state.moved
        self._check_running(state)
        try:
            self._drain_inlet()
            state, last = self._level()
        except BaseException:
            # Ctrl-C too: nobody else would let publishers in again.
            self._try_to_take_back()
            raise
        self._switch(state, last)
        return last

    def _level(self) -> tuple[StreamState, int]:
        """Refuse publishes, and wait until the stream has all that the channel has."""
        last = self.mover.mark(self.channel, on=True)
        self.say(f"{self.channel}: has moved: publishes are refused; its last sequence is {last}")
        end = time.monotonic() + self.wait
        while (state := self._stream()).last < last:
            self._pause(end, f"the stream ends at {state.last}, the channel at {last}")
        if state.last > last:
            raise BridgeError(
                f'the stream "{self.stream}" ends at {state.last}, and the channel '
                f'"{self.channel}" at {last}: somebody else publishes to it',
                hint="see who does: nats stream get; until the cut-over only the bridge may",
            )
        return state, last

    def _switch(self, state: StreamState, last: int) -> None:
        """Let the stream have the channel's name. Whatever is not known to have failed may still
        be carried out: nothing is taken back then, or both would take publishes.
        """
        try:
            self.target.set_moved(state, self.stream, last)
        except ApiError:
            self._try_to_take_back()
            raise
        except NatsError as error:
            raise BridgeError(
                f'it is not known whether "{self.channel}" is the subject of the stream '
                f'"{self.stream}" now: {error.text}',
                hint="the channel refuses publishes; start the cut-over again",
            ) from error
        self.say(f"{self.channel}: its name is the subject of the stream {self.stream} now")

    def _check_running(self, state: StreamState) -> None:
        """Whether a bridge can do its part, before anybody is refused."""
        if state.messages == 0:
            raise BridgeError(
                f'the stream "{self.stream}" is empty',
                hint="run the bridge until its lag is 0, and leave it running",
            )

    def _drain_inlet(self) -> None:
        """Close the inlet, if there is one, and wait until it is empty for certain."""
        if self._inlet_closed() is None:
            return
        self.say(f"{self.channel}: new publishers are refused for a moment")
        end = time.monotonic() + self.wait
        quiet_since = time.monotonic()
        last = -1
        while True:
            state = self._inlet_closed()
            assert state is not None
            now = time.monotonic()
            if state.messages or state.last != last:
                quiet_since = now
                last = state.last
            elif now - quiet_since >= _QUIET_S:
                return
            self._pause(end, f"{state.messages} messages wait in {names.inlet_name(self.stream)}")

    def _inlet_closed(self) -> StreamState | None:
        return self.target.close_inlet(self.stream, self.channel)

    def _try_to_take_back(self) -> None:
        """Take back what was begun; the operator is told if new publishers stay refused."""
        try:
            self._take_back()
        except FtstanError as error:
            self.say(
                f"{self.channel}: the cut-over could not be taken back: {error.text}; start it "
                f"again, or: ftstanctl bridge undo {self.channel}"
            )

    def _take_back(self) -> None:
        """After a failure: everybody may publish where they did."""
        state = self.target.look(self.stream)
        if state is not None and state.moved is not None:
            # The stream has taken over: only an undo leads back.
            return
        if self.mover.is_moved(self.channel):
            self.mover.mark(self.channel, on=False)
        if self.target.look(names.inlet_name(self.stream)) is not None:
            self.target.open_inlet(self.stream, self.channel)
        self.say(f"{self.channel}: the cut-over was taken back")

    def late_messages(self) -> int:
        """Messages that the inlet took although it was closed; 0 is what is expected.

        Raises ``NatsError``.
        """
        state = self.target.look(names.inlet_name(self.stream))
        return state.messages if state is not None and state.is_closed else 0

    # ---- undo

    def undo(self, feed: Feed) -> int:
        """Let the channel take publishes again; gives its last sequence.

        ``feed`` is open, and its client is the one that may publish to the channel. Raises
        ``BridgeError``, ``NatsError``, ``ClientError`` and what the mover raises; start it again
        then.
        """
        state = self._stream()
        is_moved = self.mover.is_moved(self.channel)
        if state.moved is None and not is_moved:
            return self._undo_begun()
        if state.moved is not None and not state.is_two_way:
            self.target.set_two_way(state, self.stream)
        if self._stream().is_two_way:
            self.target.open_inlet(self.stream, self.channel)
        last = 0
        if is_moved:
            if state.moved is not None:
                last = self._publish_rest(feed, state.moved)
            last = self.mover.mark(self.channel, on=False)
            self.say(f"{self.channel}: takes publishes again behind {last}")
        else:
            last = self._check_all_back(feed)
        state = self._stream()
        if state.moved is not None:
            self.target.set_moved(state, self.stream, None)
        return last

    def _check_all_back(self, feed: Feed) -> int:
        """The mark is gone: by an undo that had published everything, or by hand."""
        end = channel_end(feed, self.channel, self.mover.look)
        if (last := self._stream().last) > end:
            raise BridgeError(
                f'the channel "{self.channel}" takes publishes and ends at {end}, and its stream '
                f"at {last}: what is behind {end} is not in the channel",
                hint="somebody has taken the mark away; set it again for the client of the "
                "bridge: ftstanctl channel moved CHANNEL on --mover CLIENT-ID-mover",
            )
        return end

    def _undo_begun(self) -> int:
        """After a cut-over that was killed before it marked the channel."""
        inlet = self.target.look(names.inlet_name(self.stream))
        if inlet is None or not inlet.is_closed:
            raise BridgeError(
                f'the channel "{self.channel}" has not moved into the stream "{self.stream}"',
                hint="see: ftstanctl bridge status",
            )
        self.target.open_inlet(self.stream, self.channel)
        self.say(f"{self.channel}: the cut-over was taken back")
        return self.mover.look(self.channel)[1]

    def _publish_rest(self, feed: Feed, moved: int) -> int:
        """Publish what the stream has got since the cut-over; gives the last sequence."""
        last = self._quiet_end()
        at = 0
        failures = 0
        while at < last:
            try:
                if failures:
                    feed.renew()
                at = self._end_of_channel(feed, moved)
                self.say(f"{self.channel}: {at + 1} to {last} go back to it")
                self._publish(feed, at + 1, last)
                at = last
            except (ClientError, NatsError) as error:
                failures += 1
                if failures > _FAILURES:
                    raise
                self.say(f"{self.channel}: {error.text}; trying again")
                time.sleep(_AGAIN_S)
        if (end := self._end_of_channel(feed, moved)) != last:
            raise BridgeError(
                f'the channel "{self.channel}" ends at {end}, and its stream at {last}',
                hint="who else publishes as the client of the bridge?",
            )
        if self._stream().last != last:
            raise BridgeError(
                f'the stream "{self.stream}" has grown meanwhile', hint="start the undo again"
            )
        return last

    def _quiet_end(self) -> int:
        """The end of the stream, which takes nothing more since its subject is its own."""
        last = -1
        while (state := self._stream()).last != last:
            last = state.last
            time.sleep(_QUIET_S)
        return last

    def _publish(self, feed: Feed, first: int, last: int) -> None:
        at = first
        while at <= last:
            batch = self.target.js.get(self.stream, at, _AT_ONCE, _BYTES_AT_ONCE, ASK_S)
            if not batch.rows:
                # A copy of the stream that is behind has answered.
                time.sleep(_LOOK_S)
            for sequence, _, data in batch.rows:
                if sequence != at:
                    raise BridgeError(
                        f'messages {at} to {sequence - 1} of the stream "{self.stream}" are gone: '
                        "the channel would have other sequences",
                        hint="they were purged or deleted, and the channel cannot follow",
                    )
                if sequence > last:
                    break
                feed.publish(self.channel, data, marks.origin(self.stream, sequence))
                at += 1

    def _end_of_channel(self, feed: Feed, moved: int) -> int:
        """The channel's last sequence; it is what the stream has there."""
        end = channel_end(feed, self.channel, self.mover.look)
        if end > moved:
            held = self.target.message(self.stream, end)
            newest = feed.read_one(self.channel, Start.sequence(end))
            if held is None or (newest is not None and held.data != newest.data):
                raise BridgeError(
                    f'message {end} of "{self.channel}" is not that of the stream "{self.stream}"',
                    hint="who else publishes as the client of the bridge?",
                )
        return end

    # ---- both

    def _stream(self) -> StreamState:
        state = self.target.look(self.stream)
        if state is None or not self.target.is_of(state, self.channel):
            raise BridgeError(
                f'there is no stream "{self.stream}" that mirrors the channel "{self.channel}"',
                hint="make it first: ftstanctl bridge run",
            )
        return state

    def _pause(self, end: float, what: str) -> None:
        if time.monotonic() >= end:
            raise BridgeError(
                f'channel "{self.channel}": {what}, after {self.wait:g} s',
                hint="is the bridge running, and with --back where new publishers publish? "
                "see its log, and --wait",
            )
        time.sleep(_LOOK_S)
