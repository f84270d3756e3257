"""A registered client, and how its subscriptions are told from those of another session of its id.

What is stored of a subscription names the client id, and a session may end before the ends of its
subscriptions are stored. So the ack inbox, which is stored too, ends with a mark of the session:
whatever a former one has left behind, in whatever order owners, their crashes and new sessions
came, is never taken for the new one's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ftstan.broker.constants import ACK_INBOX_LENGTH, INBOX_PREFIX

if TYPE_CHECKING:
    from ftstan.broker.state import Subscription
    from ftstan.stores.interface import ClientInfo

_MARK_SIZE: Final = 4
#: Not in a NUID: no ack inbox of an original server, or of an earlier release, has it there.
_SIGN: Final = b"-"
_MARK_AT: Final = ACK_INBOX_LENGTH - 2 * _MARK_SIZE
#: What is left of the NUID: all of its counter, and some of what is random.
_KEPT: Final = _MARK_AT - len(_SIGN) - len(INBOX_PREFIX)


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
        """What the ack inboxes of this session end with."""
        if not self._mark:
            session = self.info.conn_id + b"\0" + self.info.hb_inbox
            self._mark = blake2b(session, digest_size=_MARK_SIZE).hexdigest().encode()
        return self._mark

    def marked(self, inbox: bytes) -> bytes:
        """An ack inbox for a subscription of this session, made of a new inbox and as long."""
        return INBOX_PREFIX + inbox[-_KEPT:] + _SIGN + self.mark

    def may_have_made(self, ack_inbox: bytes) -> bool:
        """Whether the subscription with that ack inbox may be of this session.

        Nobody knows it of those that an original server, or an earlier release, has made.
        """
        if len(ack_inbox) != ACK_INBOX_LENGTH or ack_inbox[_MARK_AT - 1 : _MARK_AT] != _SIGN:
            return True
        return ack_inbox[_MARK_AT:] == self.mark
