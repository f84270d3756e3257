"""Names: which channels and client ids are legal, and the NATS subjects a server listens on.

Channel names, client ids and inboxes come from clients and are bytes, since nothing promises UTF-8;
the server's own subjects are text. A subject that a client gave is checked with ``is_inbox`` before
it is put on the wire: one with a blank or a line end in it would let a client write NATS protocol
in the server's name. Nothing here subscribes or sends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Start of the discovery subject when the operator names no other.
DISCOVER_PREFIX = "_STAN.discover"

#: Longest subject that is put on the wire. A NATS server drops the connection of a client whose
#: control line exceeds 4096 bytes, and ours carries everybody's messages; the rest of the line is
#: room for a reply subject and the size.
MAX_SUBJECT = 4000

_CHANNEL = re.compile(rb"[^./*>]+(?:\.[^./*>]+)*")
_CLIENT_ID = re.compile(rb"[a-zA-Z0-9_-]+")
#: Where servers listen, ours and those of NATS (``$SYS``, ``$JS``); clients choose inboxes below
#: ``_STAN.acks.`` only. A NATS gateway puts ``_GR_`` (``$GR`` before 2.2) and two tokens (one)
#: before a reply, and takes them off an answer.
_OWN = re.compile(
    rb"(?:_GR_\.[^.]*\.[^.]*\.|\$GR\.[^.]*\.)*+(?:_FTSTAN\.|_STAN\.(?!acks\.)|\$(?!GR\.))"
)
_UNPRINTABLE = re.compile(rb"[ \t\r\n\0]")


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of one server.

    What ``server.dat`` recorded wins over ``for_cluster``: clients were told those.

    ``publish`` is a prefix: the channel follows behind a dot. Nobody listens on ``acks_subs``; it
    is only recorded. Source: ``docs/compat/protocol.md``, "Subjects".
    """

    discovery: str
    publish: str
    subscribe: str
    unsubscribe: str
    sub_close: str
    close: str
    acks_subs: str

    @classmethod
    def for_cluster(cls, cluster_id: str, discover_prefix: str = DISCOVER_PREFIX) -> Subjects:
        """Name the subjects of a new store of the cluster."""
        return cls(
            discovery=f"{discover_prefix}.{cluster_id}",
            publish=f"_STAN.pub.{cluster_id}",
            subscribe=f"_STAN.sub.{cluster_id}",
            unsubscribe=f"_STAN.unsub.{cluster_id}",
            sub_close=f"_STAN.subclose.{cluster_id}",
            close=f"_STAN.close.{cluster_id}",
            acks_subs=f"_STAN.ack.{cluster_id}",
        )

    @property
    def pings(self) -> str:
        """Where clients ping; derived from the discovery subject and not recorded."""
        return f"{self.discovery}.pings"

    @property
    def publish_all(self) -> str:
        """What a server that is not partitioned subscribes to for publishes."""
        return f"{self.publish}.>"

    def is_servers(self, subject: bytes) -> bool:
        """Whether ``subject`` is one of these, or of any server's by its usual name."""
        return is_servers(subject) or subject in {self.discovery.encode(), self.pings.encode()}

    def is_inbox(self, subject: bytes) -> bool:
        """Whether a client of this server may name ``subject`` as its inbox.

        The discovery prefix is the operator's.
        """
        return is_inbox(subject) and not self.is_servers(subject)


def valid_channel(name: bytes, *, literal: bool = True) -> bool:
    """Whether ``name`` may name a channel.

    With ``literal=False``, a pattern of per-channel limits or partitions.

    Not empty, no ``/``, no empty token between dots. Literal: no ``*`` or ``>`` at all, even inside
    a token; pattern: only as whole tokens, ``>`` only as the last. Any other byte is legal and
    there is no limit of length (``docs/compat/protocol.md``, "Channel names").
    """
    if literal:
        return _CHANNEL.fullmatch(name) is not None
    if b"/" in name:
        return False
    tokens = name.split(b".")
    if b"" in tokens:
        return False
    for token in tokens[:-1]:
        if b">" in token:
            return False
    if b">" in tokens[-1] and tokens[-1] != b">":
        return False
    return all(b"*" not in token or token == b"*" for token in tokens)


def valid_client_id(client_id: bytes) -> bool:
    """Whether ``client_id`` is one or more of letters, digits, ``-`` and ``_``."""
    return _CLIENT_ID.fullmatch(client_id) is not None


def publishable(subject: bytes) -> bool:
    """Whether a message can be published to ``subject``: legal in NATS, no wildcard, at most
    ``MAX_SUBJECT`` bytes.

    No blank, tab, line end or NUL, no empty token, no token that is ``*`` or ``>``. What is refused
    here the original would have put on the wire as it came.
    """
    if len(subject) > MAX_SUBJECT or _UNPRINTABLE.search(subject):
        return False
    return all(token not in {b"", b"*", b">"} for token in subject.split(b"."))


def is_inbox(subject: bytes) -> bool:
    """Whether a client may name ``subject`` as its inbox: one to publish to, and none of the
    servers' own.

    Who names one of those would have the server speak there, past its own permissions. The original
    delivers anywhere.
    """
    return publishable(subject) and not is_servers(subject)


def is_servers(subject: bytes) -> bool:
    """Whether servers listen on ``subject``, of STAN or of NATS itself: nothing that a client asked
    for goes there.
    """
    return _OWN.match(subject) is not None
