"""Dead letters: messages that were delivered so often and never acknowledged go to another channel.

A message that has had its deliveries is not sent again when it is due. Instead a copy of it is
*staged* in the dead-letter channel, in the same batch as publishes are; the batch is committed and
confirmed; and only then, in ``concluded``, the message counts as acknowledged for its subscription.
So at any moment the message is pending there, or stored in the dead-letter channel, or both: after
a crash between the two it is pending again, and may be stored there once more.

Nothing is ever staged behind ``stage``: what is due at a resume, which comes behind the commit,
waits for the next turn. If the copy cannot be stored (the channel cannot be made, is damaged, is
full, or storage refuses the commit), the message is sent again like any other, and tried again when
it is due next. So is one whose rules a reload has taken away meanwhile.

A dead-letter channel never drops an old message to take a dead letter: one of its limits that is
reached refuses. Follows ``docs/dead-letters.md``.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ftstan.base.errors import StoreError, WireError
from ftstan.base.log import stream as log
from ftstan.broker.publishing import HAS_MOVED
from ftstan.wire.codec import decode_msg_proto
from ftstan.wire.origin import Origin, encode_origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.broker.base import BrokerBase
    from ftstan.broker.state import Channel, Subscription
    from ftstan.config.options import DeliveryRules

#: Dead letters that one batch stores, in messages and in bytes: publishers wait for all of them.
_MOST: Final = 256
_MOST_BYTES: Final = 4 << 20
#: Messages that are looked at in one turn and found to be dead letters: the next one goes on.
_MOST_A_TURN: Final = 1000
#: Dead letters under way at a time; a window may have a million messages that are due.
_MOST_UNDER_WAY: Final = 4096
#: Bytes of a message's own reply field that are kept: encoded they are up to three times as many.
_MOST_REPLY: Final = 4096
#: Bytes that a record has in a store beside the message, as monitoring counts them.
_RECORD_BYTES: Final = 40


class _Letter(NamedTuple):
    """A message that its subscription had often enough."""

    sub: Subscription
    sequence: int


class DeadLetters:
    """What becomes of messages of a broker that nobody acknowledges."""

    def __init__(self, broker: BrokerBase, send_again: Callable[[Subscription, int], bool]) -> None:
        """``send_again`` returns False if this emit is full."""
        self._broker = broker
        self._send_again = send_again
        self._waiting: deque[_Letter] = deque()
        """For the next turn that stages."""
        self._under_way: set[_Letter] = set()
        """Those that wait, those whose copy is staged, and those that are sent again soon: nobody
        else sends them meanwhile.
        """
        self._to_send: deque[_Letter] = deque()
        """Those that cannot be dead letters, as much as one emit may have after the other."""
        self._staged: list[tuple[_Letter, Channel]] = []
        self._batch = broker.batch
        self._taken = 0
        """Looked at in this batch."""
        self._is_set = False
        """Whether a timer will look at those that wait."""
        self.stored: Counter[bytes] = Counter()
        """Dead letters stored since this server serves, by the channel that they come from."""
        self.refused = 0
        """How often a dead letter could not be stored."""

    @property
    def is_busy(self) -> bool:
        """Whether nothing more is to be offered in this turn."""
        if self._batch != self._broker.batch:
            self._batch = self._broker.batch
            self._taken = 0
        return self._taken >= _MOST_A_TURN or len(self._under_way) >= _MOST_UNDER_WAY

    def takes(self, sub: Subscription, sequence: int) -> bool:
        """Whether a message that is due shall not be sent again, for it is a dead letter now.

        Call it only for a subscription with rules.
        """
        rules = sub.rules
        assert rules is not None
        letter = _Letter(sub, sequence)
        if letter in self._under_way:
            self._taken += 1
            return True
        if not 0 < rules.max_deliveries <= _deliveries(sub, sequence):
            return False
        self._taken += 1
        self._under_way.add(letter)
        self._waiting.append(letter)
        self._set_timer()
        return True

    def _set_timer(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._broker.timers.at(self._broker.now, self._stage)

    def _stage(self) -> None:
        """Stage copies of those that wait. A timer: it runs before the batch is staged."""
        self._is_set = False
        copied = 0
        for _ in range(_MOST):
            if not self._waiting or copied > _MOST_BYTES:
                break
            letter = self._waiting.popleft()
            try:
                copied += self._copy(letter)
            except StoreError as error:
                # Its own channel cannot be read now: it is due again after a while.
                self._drop(letter)
                self._broker.on_read_error(letter.sub, error)
                self._broker.arm(letter.sub, self._broker.now + letter.sub.ack_wait)
        if self._waiting:
            self._set_timer()

    def _copy(self, letter: _Letter) -> int:
        """Stage the copy of one; returns its bytes. Raises ``StoreError``: it cannot be read."""
        broker = self._broker
        sub, sequence = letter
        rules = sub.rules
        if not sub.counted or sub.client is None or sequence not in sub.pending:
            # Acknowledged or given to another member meanwhile, or nobody is there to have it:
            # then the next who resumes.
            self._drop(letter)
            return 0
        if rules is None or not 0 < rules.max_deliveries <= _deliveries(sub, sequence):
            # A reload, since it was due. Its timer may be far off by now.
            self._plan(letter)
            return 0
        try:
            target = self._open(rules)
        except StoreError as error:
            self._refuse(letter, rules.dead_letter, error.text)
            return 0
        encoded = broker.encoded(sub.channel, sequence)
        if encoded is None:
            self._drop(letter)
            broker.note_implied_ack(sub, sequence)
            return 0
        try:
            _, _, own_reply, data, *_ = decode_msg_proto(encoded)
            if len(own_reply) > _MOST_REPLY:
                own_reply = b""
            # Before anything is encoded, which only makes it larger.
            self._check_size(target, len(own_reply), len(data))
            reply = encode_origin(self._origin(sub, sequence, own_reply))
            self._check_size(target, len(reply), len(data))
        except (StoreError, WireError) as error:
            self._refuse(letter, rules.dead_letter, error.text)
            return len(encoded)
        broker.put_message(target, reply, data)
        self._staged.append((letter, target))
        return len(encoded)

    def _open(self, rules: DeliveryRules) -> Channel:
        """The dead-letter channel. Raises ``StoreError`` if it takes nothing, or is full."""
        name = rules.dead_letter.encode("utf-8", "surrogateescape")
        if not name:
            raise StoreError("no channel takes dead letters")
        target = self._broker.open_channel(name)
        if target.refused is not None:
            raise StoreError(target.refused.decode("utf-8", "backslashreplace"))
        if target.mover is not None:
            raise StoreError(HAS_MOVED.decode())
        limits = target.store.limits
        count, _ = self._broker.staged_in(target)
        if limits.max_msgs and target.store.count + count >= limits.max_msgs:
            raise StoreError(f"it is full: max_msgs {limits.max_msgs}")
        self._check_bytes(target, 0)
        return target

    def _check_bytes(self, target: Channel, size: int) -> None:
        """Raise ``StoreError`` if ``max_bytes`` would drop older messages for one of ``size``."""
        most = target.store.limits.max_bytes
        count, staged = self._broker.staged_in(target)
        more = staged + (count + 1) * _RECORD_BYTES + size
        if most and target.store.size + more > most:
            raise StoreError(f"it is full: max_bytes {most}")

    def _check_size(self, target: Channel, reply: int, data: int) -> None:
        """Raise ``StoreError`` if a limit would drop older messages, or if nobody could be sent the
        copy. ``reply``, ``data``: bytes of the fields.
        """
        largest = self._broker.delivered_size(len(target.name), reply, data)
        self._check_bytes(target, largest)
        if largest > self._broker.max_payload:
            raise StoreError(
                f"at least {largest} bytes with its origin, the NATS server carries "
                f"{self._broker.max_payload}"
            )

    def _origin(self, sub: Subscription, sequence: int, reply: bytes) -> Origin:
        group = sub.group
        first_at = sub.first_at or {}
        return Origin(
            sub.channel.name,
            sequence,
            b"" if group is not None else sub.durable,
            b"" if group is None else group.name,
            sub.client_id,
            _deliveries(sub, sequence),
            abs(first_at.get(sequence, 0)),
            reply,
        )

    def concluded(self, failed: dict[bytes, StoreError]) -> None:
        """The batch is committed and confirmed: what is stored counts as acknowledged.

        ``failed``: the channels that were refused. Nothing is acknowledged anywhere else.
        """
        staged = self._staged
        self._staged = []
        for letter, target in staged:
            error = failed.get(target.name)
            if error is not None:
                self._refuse(letter, _show(target.name), error.text)
                continue
            self._drop(letter)
            owner = _owner(letter)
            if owner is None:
                continue
            self.stored[owner.channel.name] += 1
            self._tell(owner, letter.sequence, target)
            self._broker.note_implied_ack(owner, letter.sequence)

    def forget(self, name: bytes) -> None:
        """A channel was deleted, and its count with it."""
        self.stored.pop(name, None)

    def _tell(self, sub: Subscription, sequence: int, target: Channel) -> None:
        log.warning(
            f'dead letter: message {sequence} of channel "{_show(sub.channel.name)}" after '
            f"{_deliveries(sub, sequence)} deliveries to {_who(sub)}, stored in "
            f'"{_show(target.name)}"',
            backs_off="dead letter",
            client=sub.client_id,
            channel=sub.channel.name,
        )

    def _refuse(self, letter: _Letter, target: str, why: str) -> None:
        """It stays with its subscription, and is sent again in one of the next turns."""
        sub, sequence = letter
        self.refused += 1
        log.error(
            f"dead letter not stored: message {sequence} of channel "
            f'"{_show(sub.channel.name)}" after {_deliveries(sub, sequence)} deliveries to '
            f'{_who(sub)}, for channel "{target}": {why}; it is delivered again',
            backs_off="dead letter refused",
            client=sub.client_id,
            channel=sub.channel.name,
        )
        self._plan(letter)

    def _plan(self, letter: _Letter) -> None:
        """Send it again as soon as there is room."""
        self._to_send.append(letter)
        if len(self._to_send) == 1:
            self._broker.timers.at(self._broker.now, self._send_some)

    def _send_some(self) -> None:
        while self._to_send:
            letter = self._to_send[0]
            if not self._send_again(*letter):
                self._broker.timers.at(self._broker.now, self._send_some)
                return
            self._to_send.popleft()
            self._drop(letter)

    def _drop(self, letter: _Letter) -> None:
        self._under_way.discard(letter)


def _owner(letter: _Letter) -> Subscription | None:
    """Who has the message in flight now: a member that left has given it to another one."""
    sub, sequence = letter
    if sequence in sub.pending:
        return sub
    if sub.group is not None:
        for member in sub.group.members():
            if sequence in member.pending:
                return member
    return None


def _deliveries(sub: Subscription, sequence: int) -> int:
    """How often this server has sent a message to a subscription or its group.

    What recovery found pending was sent before, and nobody knows how often: that does not count.
    """
    first_at = sub.first_at or {}
    return sub.pending.resends(sequence) + (first_at.get(sequence, 0) > 0)


def _who(sub: Subscription) -> str:
    if sub.group is not None:
        return f'queue group "{_show(sub.group.name)}"'
    client = f'of client "{_show(sub.client_id)}"'
    return f'durable "{_show(sub.durable)}" {client}' if sub.durable else f"a subscription {client}"


def _show(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
