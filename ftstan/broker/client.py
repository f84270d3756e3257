"""A registered client, and how its subscriptions are told from those of another session of its id.

What is stored of a subscription names the client id, and a session may end before the ends of its
subscriptions are stored. So the ack inbox, which is stored too, has a mark of the session in it:
whatever a former one has left behind, in whatever order owners, their crashes and new sessions
came, is never taken for the new one's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final
from zlib import crc32

from ftstan.broker.constants import ACK_INBOX_LENGTH, INBOX_PREFIX
from ftstan.wire.nuid import PREFIX_LENGTH

if TYPE_CHECKING:
    from ftstan.broker.state import Subscription
    from ftstan.stores.interface import ClientInfo

#: An ack inbox of ours: what all have in front, the session's mark and a check, as long as the
#: random part of a NUID, and the counter of one.
_MARK_AT: Final = len(INBOX_PREFIX)
_CHECK_AT: Final = _MARK_AT + 8
_COUNTER_AT: Final = _MARK_AT + PREFIX_LENGTH
_HEX: Final = b"0123456789abcdef"


@dataclass(eq=False, slots=True)
class Client:
    """A client and its live subscriptions, in the order in which they were made.

    ``failed``: heartbeats in a row that were not answered; ``waiting``: heartbeats that wait for an
    answer; ``beat_at``: when the next one goes out, ``late_at``: when the last one fails (monotonic
    ns); timers of an earlier ``generation`` do nothing. ``recovered``: whether a start found it,
    and with it its subscriptions. ``heard``: whether it has connected or answered here, since the
    link was last away; ``asked``: whether it is being asked.
    """

    info: ClientInfo
    subs: dict[Subscription, None] = field(default_factory=dict)
    failed: int = 0
    waiting: int = 0
    beat_at: int = 0
    late_at: int = 0
    generation: int = 0
    gone: bool = False
    recovered: bool = False
    heard: bool = False
    asked: bool = False
    _mark: bytes = b""

    @property
    def client_id(self) -> bytes:
        """The client's id."""
        return self.info.client_id

    def shown(self) -> str:
        """The id for log lines."""
        return self.info.client_id.decode("utf-8", "backslashreplace")

    @property
    def mark(self) -> bytes:
        """What the ack inboxes of this session have in common."""
        if not self._mark:
            session = self.info.conn_id + b"\0" + self.info.hb_inbox
            self._mark = blake2b(session, digest_size=4).hexdigest().encode()
        return self._mark

    def marked(self, inbox: bytes) -> bytes:
        """The ack inbox of a subscription of this session, for which ``inbox`` was made."""
        counter = inbox[_COUNTER_AT:]
        return INBOX_PREFIX + self.mark + _check(self.mark, counter) + counter

    def may_have_made(self, ack_inbox: bytes) -> bool:
        """Whether the subscription with that ack inbox may be of this session.

        Nobody knows it of those that an original server, or an earlier release, has made.
        """
        mark = ack_inbox[_MARK_AT:_CHECK_AT]
        is_ours = (
            len(ack_inbox) == ACK_INBOX_LENGTH
            and not mark.strip(_HEX)
            and ack_inbox[_CHECK_AT:_COUNTER_AT] == _check(mark, ack_inbox[_COUNTER_AT:])
        )
        return not is_ours or mark == self.mark


def _check(mark: bytes, counter: bytes) -> bytes:
    """What a NUID of somebody else does not have there, but for one in 10**12."""
    return b"%04x" % (crc32(mark + counter) & 0xFFFF)
