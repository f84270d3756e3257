"""Subscriptions and what they have not acknowledged, as rows of ``Subscriptions`` and
``SubsPending``.

In memory there is, per subscription, what is outstanding (``pending``) and what the rows say
(``written``). A flush brings the rows there in the cheapest way: nothing outstanding deletes them,
few outstanding replace them by one row, many outstanding append a journal row. Memory follows the
rows only when their transaction has landed (``Plan.landed``).

Two kinds of rows (``docs/compat/sqlstore.md``): kind A, one sequence a row, is written with
``no_caching``; kind B, a journal entry, otherwise. Both are read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ftstan.base.errors import RecoveryError
from ftstan.stores.interface import StoredSub, SubState
from ftstan.stores.protos import decode_sub, encode_sub

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ftstan.stores.sql.session import Row, Session
    from ftstan.wire.block import SubEvents

#: Sequences in one row: a BLOB of MySQL takes 65,535 bytes.
_MOST_IN_ROW = 2000
#: So few outstanding ones are written anew with every flush.
_FEW = 256
#: A journal is written anew when it has so many more entries than are outstanding.
_SLACK = 1000

_INSERT_SUB = "INSERT INTO Subscriptions (id, subid, lastsent, proto) VALUES (%s, %s, %s, %s)"
_UPDATE_SUB = "UPDATE Subscriptions SET proto = %s, deleted = FALSE WHERE id = %s AND subid = %s"
_MARK_SUB = "UPDATE Subscriptions SET deleted = TRUE WHERE id = %s AND subid = %s"
_DELETE_SUB = "DELETE FROM Subscriptions WHERE id = %s AND subid = %s"
_DELETE_MARKED = "DELETE FROM Subscriptions WHERE id = %s AND deleted = TRUE"
_LAST_SENT = "UPDATE Subscriptions SET lastsent = %s WHERE id = %s AND subid = %s"
_DELETE_PENDING = "DELETE FROM SubsPending WHERE subid = %s"


@dataclass(slots=True)
class SubRecord:
    """One subscription."""

    channel: int
    sub_id: int
    last_sent: int = 0
    stored_last_sent: int = 0
    pending: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    added: set[int] = field(default_factory=set)
    """Outstanding, and not in the rows."""
    acked: set[int] = field(default_factory=set)
    """In the rows, and not outstanding."""
    top_row: int = 0
    """The highest row number, 0 if there are no rows."""
    entries: int = 0
    """Sequences in the rows, counted as often as they are there."""
    has_other_kind: bool = False
    """Rows of the kind that is not written now."""
    is_stored: bool = False

    def sent(self, sequences: list[int]) -> None:
        """The sequences were sent and wait for their acknowledgement."""
        self.last_sent = max(self.last_sent, *sequences)
        self.pending.update(sequences)
        if self.written:
            self.acked.difference_update(sequences)
            self.added.update(set(sequences).difference(self.written))
        else:
            self.added.update(sequences)

    def acknowledge(self, sequences: list[int]) -> None:
        """The sequences were acknowledged."""
        self.last_sent = max(self.last_sent, *sequences)
        self.pending.difference_update(sequences)
        self.added.difference_update(sequences)
        if self.written:
            self.acked.update(self.written.intersection(sequences))

    @property
    def is_changed(self) -> bool:
        """Whether the rows do not say what is so."""
        return bool(self.added or self.acked) or self.last_sent != self.stored_last_sent


@dataclass(slots=True)
class _After:
    """What is true of one subscription when the plan has landed."""

    record: SubRecord
    last_sent: int
    written: set[int]
    top_row: int
    entries: int


@dataclass(slots=True)
class Plan:
    """Rows to write for some subscriptions."""

    deletes: list[tuple[int, int]] = field(default_factory=list)
    acks: list[tuple[int, int]] = field(default_factory=list)
    inserts: list[tuple[int, int, int, int, bytes | None, bytes | None]] = field(
        default_factory=list
    )
    last_sent: list[tuple[int, int, int]] = field(default_factory=list)
    after: list[_After] = field(default_factory=list)

    def write(self, session: Session) -> None:
        """In a transaction. Raises ``StoreError``."""
        row = session.row
        session.execute_many(
            f"DELETE FROM SubsPending WHERE subid = %s AND {row} <= %s", self.deletes
        )
        session.execute_many("DELETE FROM SubsPending WHERE subid = %s AND seq = %s", self.acks)
        session.execute_many(
            f"INSERT INTO SubsPending (subid, {row}, seq, lastsent, pending, acks)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            self.inserts,
        )
        session.execute_many(_LAST_SENT, self.last_sent)

    def landed(self) -> None:
        """The transaction is committed."""
        for after in self.after:
            record = after.record
            record.stored_last_sent = after.last_sent
            record.written = after.written
            record.added = record.pending - after.written
            record.acked = after.written - record.pending
            record.top_row = after.top_row
            record.entries = after.entries
            record.has_other_kind = False


class SubBook:
    """All subscriptions of one store."""

    def __init__(self, *, by_row: bool) -> None:
        """``by_row``: write kind A."""
        self._by_row = by_row
        self.next_id = 1
        """For the next new subscription of any channel: ``SubsPending`` names no channel."""
        self._next_row = 1
        self._records: dict[int, SubRecord] = {}
        self._changed: set[int] = set()
        self._marked: set[int] = set()
        """Channels with rows of deleted subscriptions that only keep a number."""

    # ---- events

    def open(self, channel: int, state: SubState) -> None:
        """A subscription that is being added."""
        self.next_id = max(self.next_id, state.sub_id + 1)
        self._records[state.sub_id] = SubRecord(
            channel, state.sub_id, last_sent=state.last_sent, stored_last_sent=state.last_sent
        )

    def add_events(self, events: SubEvents) -> None:
        """Take the events, and leave none."""
        records = self._records
        changed = self._changed
        for sub_id, runs in events.by_sub().items():
            record = records.get(sub_id)
            if record is None:
                continue
            for acked, sequences in runs:
                if acked:
                    record.acknowledge(sequences)
                else:
                    record.sent(sequences)
            changed.add(sub_id)
        events.clear()

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to flush."""
        return bool(self._changed)

    def plan(self, most: int) -> Plan:
        """Rows for at most so many changed subscriptions."""
        plan = Plan()
        for sub_id in list(self._changed)[:most]:
            record = self._records.get(sub_id)
            if record is None or not record.is_changed:
                self._changed.discard(sub_id)
            elif record.is_stored:
                self._plan(plan, record)
        return plan

    def landed(self, plan: Plan) -> None:
        """The plan is committed."""
        plan.landed()
        for after in plan.after:
            if not after.record.is_changed:
                self._changed.discard(after.record.sub_id)

    def _plan(self, plan: Plan, record: SubRecord) -> None:
        before = len(plan.inserts)
        written = set(record.pending)
        entries = 0
        is_new = True
        if record.added or record.acked:
            replaces = (
                record.has_other_kind
                or not record.pending
                or record.entries > 4 * len(record.pending) + _SLACK
                or (not self._by_row and len(record.pending) <= _FEW)
            )
            is_new = replaces
            if replaces:
                if record.top_row:
                    plan.deletes.append((record.sub_id, record.top_row))
                self._insert(plan, record, written, set())
                entries = len(written)
            else:
                self._insert(plan, record, record.added, record.acked)
                entries = record.entries + len(record.added) + len(record.acked)
        else:
            is_new = False
            entries = record.entries
        kept = 0 if is_new else record.top_row
        top = plan.inserts[-1][1] if len(plan.inserts) > before else kept
        # A row of kind B says so itself, as long as it is there.
        if record.last_sent != record.stored_last_sent:
            plan.last_sent.append((record.last_sent, record.channel, record.sub_id))
        plan.after.append(_After(record, record.last_sent, written, top, entries))

    def _insert(self, plan: Plan, record: SubRecord, added: set[int], acked: set[int]) -> None:
        sub_id = record.sub_id
        if self._by_row:
            plan.acks.extend((sub_id, sequence) for sequence in sorted(acked))
            for sequence in sorted(added):
                plan.inserts.append((sub_id, self._row(), sequence, 0, None, None))
            return
        pending = _portions(sorted(added))
        acks = _portions(sorted(acked))
        for i in range(max(len(pending), len(acks))):
            plan.inserts.append(
                (
                    sub_id,
                    self._row(),
                    0,
                    record.last_sent,
                    _encode_sequences(pending[i]) if i < len(pending) else None,
                    _encode_sequences(acks[i]) if i < len(acks) else None,
                )
            )

    def _row(self) -> int:
        row = self._next_row
        self._next_row += 1
        return row

    # ---- changes of the subscriptions themselves, in a transaction

    def write(self, session: Session, channel: int, change: SubState | int, *, new: bool) -> None:
        """Add (``new``), update, or delete (a number) a subscription. Raises ``StoreError``."""
        if isinstance(change, int):
            # The highest number must not be given again after a restart.
            keep = change == self.next_id - 1
            session.execute(_MARK_SUB if keep else _DELETE_SUB, (channel, change))
            session.execute(_DELETE_PENDING, (change,))
            return
        proto = encode_sub(change)
        if new and channel in self._marked:
            session.execute(_DELETE_MARKED, (channel,))
        if new or not session.execute(_UPDATE_SUB, (proto, channel, change.sub_id)):
            session.execute(_INSERT_SUB, (channel, change.sub_id, change.last_sent, proto))

    def wrote(self, channel: int, change: SubState | int, *, new: bool) -> None:
        """The same, when it has landed."""
        if isinstance(change, int):
            self._records.pop(change, None)
            self._changed.discard(change)
            if change == self.next_id - 1:
                self._marked.add(channel)
            return
        if new:
            self._marked.discard(channel)
        record = self._records.get(change.sub_id)
        if record is None:
            self.open(channel, change)
            record = self._records[change.sub_id]
        record.is_stored = True
        record.last_sent = max(record.last_sent, change.last_sent)

    def failed(self, change: SubState | int, *, new: bool) -> None:
        """A change that was not stored and will not be."""
        if new and not isinstance(change, int):
            self._records.pop(change.sub_id, None)

    def forget(self, channel: int) -> None:
        """The channel is deleted."""
        gone = [r.sub_id for r in self._records.values() if r.channel == channel]
        for sub_id in gone:
            del self._records[sub_id]
            self._changed.discard(sub_id)
        self._marked.discard(channel)

    # ---- recovery

    def recover(self, session: Session) -> dict[int, list[StoredSub]]:
        """Read all subscriptions, by channel number. Raises ``StoreError`` and ``WireError``."""
        highest = session.query("SELECT MAX(subid) FROM Subscriptions")[0][0]
        self.next_id = int(highest or 0) + 1
        found: dict[int, list[StoredSub]] = {}
        for channel, sub_id, last_sent, proto, deleted in session.query(
            "SELECT id, subid, lastsent, proto, deleted FROM Subscriptions ORDER BY subid"
        ):
            if deleted:
                self._marked.add(channel)
                continue
            state = decode_sub(bytes(proto)) if proto is not None else SubState(0, b"")
            state = replace(
                state, sub_id=int(sub_id), last_sent=max(int(last_sent or 0), state.last_sent)
            )
            record = SubRecord(channel, state.sub_id, is_stored=True)
            record.last_sent = state.last_sent
            record.stored_last_sent = int(last_sent or 0)
            self._records[state.sub_id] = record
            found.setdefault(channel, []).append(StoredSub(state))
        for row in session.query(
            f"SELECT subid, {session.row}, seq, lastsent, pending, acks FROM SubsPending"
            f" ORDER BY subid, {session.row}"
        ):
            self._replay(row)
        for subs in found.values():
            for sub in subs:
                record = self._records[sub.state.sub_id]
                record.written = set(record.pending)
                sub.state = replace(sub.state, last_sent=record.last_sent)
                sub.pending = set(record.pending)
        return found

    def _replay(self, row: Row) -> None:
        sub_id, number, sequence, last_sent, pending, acks = row
        self._next_row = max(self._next_row, int(number) + 1)
        # Rows of a subscription that is gone must not come to belong to a new one.
        self.next_id = max(self.next_id, int(sub_id) + 1)
        record = self._records.get(sub_id)
        if record is None:
            return
        record.top_row = max(record.top_row, int(number))
        if sequence:
            record.last_sent = max(record.last_sent, int(sequence))
            record.pending.add(int(sequence))
            record.entries += 1
            record.has_other_kind |= not self._by_row
        else:
            record.last_sent = max(record.last_sent, int(last_sent))
            sent = sequences(pending, sub_id)
            acked = sequences(acks, sub_id)
            record.pending.update(sent)
            record.pending.difference_update(acked)
            record.entries += len(sent) + len(acked)
            record.has_other_kind |= self._by_row

    def keep_only(self, sub_id: int, first: int, last: int) -> set[int]:
        """Of what a recovered subscription has outstanding, what the channel has."""
        record = self._records[sub_id]
        kept = {s for s in record.pending if first <= s <= last}
        record.pending = set(kept)
        record.acked = record.written - kept
        return kept


def _portions(sequences: Sequence[int]) -> list[Sequence[int]]:
    return [sequences[i : i + _MOST_IN_ROW] for i in range(0, len(sequences), _MOST_IN_ROW)]


def sequences(data: bytes | None, sub_id: int) -> list[int]:
    """A list of ``SubsPending``. Raises ``RecoveryError``."""
    if not data:
        return []
    try:
        found = json.loads(bytes(data)) or []
    except ValueError:
        found = None
    if isinstance(found, list) and all(type(n) is int and n >= 0 for n in found):
        return found
    raise RecoveryError(
        f"sql: unable to decode the pending sequences of subscription {sub_id}",
        hint=f"look at SubsPending where subid = {sub_id}",
    )


def _encode_sequences(sequences: Iterable[int]) -> bytes | None:
    """A list as it stands in ``SubsPending``; ``None`` for an empty one."""
    text = ",".join(map(str, sequences))
    return f"[{text}]".encode() if text else None
