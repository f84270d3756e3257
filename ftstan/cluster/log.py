"""The replicated log: a stream with three copies, read in order, appended to one entry at a time.

An append says which entry it follows, and the stream refuses it if that is not its last one: so of
two nodes that believe to lead only one can append, and the other hears so. An append without an
answer is repeated with the same bytes until the stream says where it stands: taken, or refused
because the place is taken, and then the entry in that place is read and compared.

Belongs to one thread, and blocks.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import (
    DamageError,
    FencedError,
    FtstanError,
    NatsError,
    RecoveryError,
    StoppedError,
    WireError,
)
from ftstan.base.log import stream as log
from ftstan.base.ratelimit import RateLimit
from ftstan.cluster.entry import (
    INCARNATION_SIZE,
    NONCE_SIZE,
    Entry,
    Kind,
    LeaderRecord,
    Position,
    crc_after,
    follow,
)
from ftstan.cluster.names import log_subject, stream_name
from ftstan.nats.jetstream import (
    END_OF_BATCH,
    NO_STREAM_LEADER,
    NOT_FOUND,
    ApiError,
    Appended,
    JetStream,
    WrongLast,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from ftstan.base.clock import Clock

#: Bytes of an entry's body; less where NATS takes less.
_MOST_BODY: Final = 512 << 10
_ROOM_FOR_HEADERS: Final = 4 << 10
#: Entries and bytes of one read.
_READ_ENTRIES: Final = 256
_READ_BYTES: Final = 4 << 20
_READ_S: Final = 2.0
#: A server that takes less at once is no place for the log.
_LEAST_PAYLOAD: Final = 128 << 10
_APPEND_S: Final = 1.0
_API_S: Final = 5.0
_CONNECT_S: Final = 1.0
_AGAIN_S: Final = 0.02
#: How long a stream may say that it is shorter than what was read of it, before that is believed.
_SHORT_S: Final = 3.0
#: How long a server that stops waits for a majority.
_STOP_S: Final = 5.0
_REPLICAS: Final = 3
_INCARNATION: Final = "ftstan_incarnation"


class LogLostError(RecoveryError):
    """The log is not the one that this node has read, or has lost entries: nothing is served."""


class PurgedError(FtstanError):
    """What this node would read next was purged: it must copy the store of another node."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the stream holds: entries ``first`` to ``last`` (none if ``first`` is behind ``last``),
    in so many bytes.
    """

    first: int
    last: int
    size: int


@dataclass(frozen=True, slots=True)
class Read:
    """What one read gave: entries with the position behind each, and whether the log ends there."""

    entries: list[tuple[Entry, Position]]
    ended: bool


def settings(cluster_id: str, incarnation: bytes) -> dict[str, Any]:
    """How the stream is made, and how it must be found at each start."""
    return {
        "name": stream_name(cluster_id),
        "subjects": [log_subject(cluster_id, incarnation)],
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "discard": "new",
        "storage": "file",
        "num_replicas": _REPLICAS,
        "allow_direct": True,
        "deny_delete": True,
        # The leader purges what every node has.
        "deny_purge": False,
        "allow_rollup_hdrs": False,
        "sealed": False,
        "metadata": {_INCARNATION: incarnation.hex()},
    }


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What of a stream's settings is not as it must be, in words."""
    said = []
    for key, value in wanted.items():
        have = found.get(key, False if isinstance(value, bool) else None)
        if key == "metadata":
            have = {_INCARNATION: (have or {}).get(_INCARNATION)}
        if key == "subjects":
            have = have or []
        if have != value:
            said.append(f"{key} is {have} instead of {value}")
    said += [
        f"{key} is set"
        for key in ("mirror", "sources", "republish", "subject_transform")
        if found.get(key)
    ]
    return said


class ReplicatedLog:
    """The log of ``cluster_id``, over ``js``."""

    def __init__(
        self, js: JetStream, cluster_id: str, clock: Clock, stopping: threading.Event
    ) -> None:
        self.js = js
        self._cluster_id = cluster_id
        self._clock = clock
        self._stopping = stopping
        self._stream = stream_name(cluster_id)
        self._subject = ""
        self._waits = RateLimit()
        self._broken_off = False
        """Whether the last append did not come to its end."""
        self._short_since = 0.0
        """Since when the stream says that it ends before ``at``."""
        self.is_replaced = False
        """Whether another node leads, as the last append was told."""
        self.is_leaderless = False
        """Whether the last append was told that no server leads the stream; any thread may look."""
        self.at = Position(b"")
        """How far this node has read or written."""

    # ---- the stream
    # ----------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect if the link is down.

        Raises ``NatsError``, and ``LogLostError`` for a server that takes no entries of our size.
        """
        if not self.js.connected:
            self.js.connect(_CONNECT_S)
        if self.js.link.max_payload < _LEAST_PAYLOAD:
            raise LogLostError(
                f"the NATS server takes payloads of {self.js.link.max_payload} bytes at most: too "
                "small for the log of a cluster",
                hint=f"set its max_payload to {_LEAST_PAYLOAD} or more",
            )

    def find(self) -> bytes | None:
        """The incarnation of the stream, ``None`` if there is none.

        Raises ``NatsError`` if nobody answers, and ``LogLostError`` for a stream that is not as we
        make it.
        """
        try:
            told = self.js.api(f"STREAM.INFO.{self._stream}", {}, _API_S)
        except ApiError as error:
            if error.is_missing:
                return None
            raise
        config = told.get("config", {})
        said = str(config.get("metadata", {}).get(_INCARNATION, ""))
        try:
            incarnation = bytes.fromhex(said)
        except ValueError:
            incarnation = b""
        if len(incarnation) != INCARNATION_SIZE:
            raise LogLostError(
                f"the stream {self._stream} was not made by ftstan",
                hint="use another cluster id, or delete that stream",
            )
        if wrong := differences(config, settings(self._cluster_id, incarnation)):
            raise LogLostError(
                f"the settings of the stream {self._stream} were changed: {'; '.join(wrong)}",
                hint="set them back with the nats command, then start this node again",
            )
        return incarnation

    def make(self, behind: Position | None = None) -> None:
        """Make the stream; nothing happens if another node was faster.

        ``behind``: the position that a store stands for already, and the incarnation; the stream
        begins with the entry behind it. Raises ``NatsError`` while it cannot be made.
        """
        incarnation = behind.incarnation if behind is not None else os.urandom(INCARNATION_SIZE)
        wanted = settings(self._cluster_id, incarnation)
        if behind is not None:
            wanted["first_seq"] = behind.sequence + 1
        try:
            self.js.api(f"STREAM.CREATE.{self._stream}", wanted, _API_S)
        except ApiError as error:
            if not error.is_other:
                raise

    def begin(self, at: Position) -> None:
        """Read and append behind ``at`` from now on."""
        self.at = at
        self._subject = log_subject(self._cluster_id, at.incarnation)

    def bounds(self) -> Bounds:
        """What the stream holds now. Raises ``NatsError``."""
        state = self.js.api(f"STREAM.INFO.{self._stream}", {}, _API_S).get("state", {})
        last = int(state.get("last_seq", 0))
        first = int(state.get("first_seq", 0)) if state.get("messages") else last + 1
        return Bounds(first, last, int(state.get("bytes", 0)))

    def purge(self, first: int) -> None:
        """Drop the entries before ``first``. Raises ``NatsError``."""
        self.js.api(f"STREAM.PURGE.{self._stream}", {"seq": first}, _API_S)

    def check(self) -> bool:
        """Whether the stream has the entry that ``at`` names, as it was read.

        False: this copy of the stream does not have it, perhaps not yet. Raises ``LogLostError`` if
        it has another one, and ``PurgedError`` if the one behind it is not there any more.
        """
        bounds = self.bounds()
        if bounds.first > self.at.sequence + 1:
            raise self._purged(bounds.first)
        if bounds.first == self.at.sequence + 1:
            # The entry itself was purged, or there never was one: the next one names its CRC.
            return bounds.last >= self.at.sequence
        found = self._entry_at(self.at.sequence)
        if found is None:
            return False
        entry_crc = int.from_bytes(found[36:40], "big")
        if crc_after(entry_crc, found) != self.at.crc:
            raise LogLostError(
                f"entry {self.at.sequence} of the log is not the one that this node has read: "
                "the log has lost entries that were acknowledged, or was edited",
                hint="see docs/clustering.md, A log that lost entries",
            )
        return True

    # ---- reading
    # ----------------------------------------------------------------------------------------------

    def read(self) -> Read:
        """The next entries; ``at`` is behind them then.

        Raises ``NatsError``, and ``LogLostError`` for entries that do not follow what was read.
        """
        batch = self.js.get(self._stream, self.at.sequence + 1, _READ_ENTRIES, _READ_BYTES, _READ_S)
        entries = []
        for sequence, subject, data in batch.rows:
            if sequence > self.at.sequence + 1 and self.bounds().first >= sequence:
                # Nothing before it is there: a hole behind others is for ``follow`` to find.
                raise self._purged(sequence)
            if subject != self._subject:
                raise LogLostError(
                    f"the stream {self._stream} was deleted and made again by somebody",
                    hint="see docs/clustering.md, A log that lost entries",
                )
            try:
                entry, self.at = follow(data, sequence, self.at)
            except DamageError as error:
                raise LogLostError(
                    error.text,
                    hint=error.hint or "see docs/clustering.md, A log that lost entries",
                ) from error
            entries.append((entry, self.at))
            self._short_since = 0.0
        if not batch.rows and batch.status not in (NOT_FOUND, END_OF_BATCH):
            raise NatsError("no server answers for the log")
        return Read(entries, batch.status == NOT_FOUND)

    def _purged(self, first: int) -> PurgedError:
        return PurgedError(
            f"the log begins with entry {first}, and this node has read {self.at.sequence} entries"
        )

    def _entry_at(self, sequence: int) -> bytes | None:
        batch = self.js.get(self._stream, sequence, 1, _READ_BYTES, _READ_S)
        if batch.rows and batch.rows[0][0] == sequence and batch.rows[0][1] == self._subject:
            return batch.rows[0][2]
        return None

    # ---- appending
    # ----------------------------------------------------------------------------------------------

    def pieces(self, kind: Kind, body: bytes) -> Iterator[Entry]:
        """The entries for ``body``, each to be appended before the next is asked for."""
        most = min(_MOST_BODY, self.js.link.max_payload - _ROOM_FOR_HEADERS)
        for start in range(0, max(len(body), 1), most):
            at = self.at
            yield Entry(
                *(kind, at.incarnation, at.sequence + 1, at.epoch, at.crc),
                body[start : start + most],
                more=start + most < len(body),
            )

    def append(self, body: bytes) -> None:
        """Append a batch as the leader; returns when the stream has all of it.

        Raises ``FencedError`` if another node leads, ``LogLostError``, and ``StoppedError`` if this
        server is to stop while no majority answers. Then nothing more is appended: what came behind
        half a batch would be read as the rest of it.
        """
        if self._broken_off:
            if self._stopping.is_set():
                raise StoppedError("leadership lost while committing log: the server stops")
            raise FencedError("an append to the log was broken off")
        self._short_since = 0.0
        self._broken_off = True
        try:
            for entry in self.pieces(Kind.BATCH, body):
                self._append(entry.encode())
        except FencedError:
            self.is_replaced = True
            raise
        self._broken_off = False

    def _append(self, data: bytes) -> None:
        end = 0.0
        while not self.attempt(data):
            now = self._clock.mono()
            if not self._stopping.is_set():
                end = now + _STOP_S
            if now >= end:
                raise StoppedError("leadership lost while committing log: the server stops")

    def attempt(self, data: bytes) -> bool:
        """Try once; whether the stream has the entry now. False: nobody knows, so try again.

        Raises ``FencedError`` if another entry is in its place, and ``LogLostError``.
        """
        try:
            self.connect()
            said = self.js.append(self._stream, self._subject, data, self.at.sequence, _APPEND_S)
            if isinstance(said, WrongLast):
                return self._settle(data, said.last)
        except ApiError:
            raise
        except (NatsError, WireError) as error:
            self.is_leaderless = False
            return self._wait(error.text)
        if isinstance(said, Appended):
            self._took(data)
            return True
        self.is_leaderless = said.why == NO_STREAM_LEADER
        return self._wait(said.why)

    def _settle(self, data: bytes, last: int) -> bool:
        """The stream says that ``last`` is its last entry: see what is in the place of ours."""
        place = self.at.sequence + 1
        if last < self.at.sequence:
            # A server that has just begun to lead the stream may not have applied its last entries.
            now = self._clock.mono()
            self._short_since = self._short_since or now
            if now - self._short_since < _SHORT_S:
                return self._wait("the stream has fewer entries than this node has read")
            raise LogLostError(
                f"the log ends with entry {last}, and this node has read {self.at.sequence} "
                "entries: it has lost entries that were acknowledged",
                hint="see docs/clustering.md, A log that lost entries",
            )
        self._short_since = 0.0
        found = self._entry_at(place)
        if found is None and last > place and self.bounds().first > place:
            raise FencedError(
                "another node leads this cluster, and what it wrote in place of this one's last "
                "entry was purged: this one does not lead any more"
            )
        if found is None:
            # Proposed and not in this copy yet, or never to be: only the next attempt can tell.
            return self._wait(f"entry {place} is on its way")
        if found != data:
            raise FencedError("another node leads this cluster now: this one does not any more")
        self._took(data)
        return True

    def _took(self, data: bytes) -> None:
        _, self.at = follow(data, self.at.sequence + 1, self.at)
        self._short_since = 0.0
        self.is_leaderless = False

    def _wait(self, why: str) -> bool:
        if self._waits.allow(self._clock.mono()):
            log.warning(f"cluster: an append to the log waits: {why}")
        time.sleep(_AGAIN_S)
        return False

    # ---- leading
    # ----------------------------------------------------------------------------------------------

    def leader_record(self, node: str) -> bytes:
        """The entry that makes ``node`` the leader behind everything that was read."""
        at = self.at
        record = LeaderRecord(node, os.urandom(NONCE_SIZE), at.epoch, at.sequence)
        entry = Entry(*(Kind.LEADER, at.incarnation, at.sequence + 1, 0, at.crc), record.encode())
        return entry.encode()
