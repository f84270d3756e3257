"""How large requests, and the names in them, may be: what anybody may send must not cost everybody.

The original has no bounds of its own but that of a NATS message. These are far above what client
libraries send: a request of theirs has some hundred bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftstan.broker import constants as c
from ftstan.stores.interface import MAX_NUMBER
from ftstan.wire import messages

if TYPE_CHECKING:
    from ftstan.stores.interface import ChannelStore

#: Bytes of a request or an ack, whatever is in it; publishes have the bound of the NATS server.
MAX_REQUEST: Final = 16 << 10
#: Bytes of a channel's name (a directory of the file store bears it), a durable's and a queue
#: group's.
MAX_NAME: Final = 255
#: Bytes of a client id, a connection id, a guid and an inbox.
MAX_ID: Final = 1024

#: What the log says of a request that was not even decoded.
LARGE: Final = f"more than {MAX_REQUEST} bytes"


def excess_of_connect(request: messages.ConnectRequest) -> str:
    """Name what is too long in the request, as its refusal; empty if nothing is."""
    return _excess(
        c.LONG_IN_CONNECT,
        ("client id", request.client_id, MAX_ID),
        ("heartbeat inbox", request.heartbeat_inbox, MAX_ID),
        ("connection id", request.conn_id, MAX_ID),
    )


def excess_of_subscribe(request: messages.SubscriptionRequest) -> str:
    """Name what is too long in the request, as its refusal; empty if nothing is."""
    return _excess(
        c.LONG_IN_SUBSCRIBE,
        ("client id", request.client_id, MAX_ID),
        ("channel", request.subject, MAX_NAME),
        ("queue group", request.q_group, MAX_NAME),
        ("durable name", request.durable_name, MAX_NAME),
        ("inbox", request.inbox, MAX_ID),
    )


def exhausted(store: ChannelStore) -> str:
    """Name what a channel has no numbers left of, as the refusal of all that is new.

    Empty while there are.
    """
    if store.last > MAX_NUMBER:
        return c.NO_NUMBERS.format(what="sequence", number=store.last)
    if store.next_sub_id > MAX_NUMBER:
        return c.NO_NUMBERS.format(what="subscription id", number=store.next_sub_id - 1)
    return ""


def _excess(text: str, *names: tuple[str, bytes, int]) -> str:
    for what, name, most in names:
        if len(name) > most:
            return text.format(what=what, most=most)
    return ""


#: What a request is called that is too large, and what it is answered with: the same as one that
#: cannot be decoded.
REFUSALS: Final = {
    c.SID_CONNECT: ("connect", messages.connect_error(c.INVALID_CONNECT)),
    c.SID_SUBSCRIBE: ("subscribe", messages.subscription_error(c.INVALID_SUBSCRIBE)),
    c.SID_UNSUBSCRIBE: ("unsubscribe", messages.subscription_error(c.INVALID_UNSUBSCRIBE)),
    c.SID_SUB_CLOSE: ("subscription close", messages.subscription_error(c.INVALID_UNSUBSCRIBE)),
    c.SID_CLOSE: ("close", messages.close_response(c.INVALID_CLOSE)),
    c.SID_PING: ("ping", b""),
}

#: Why a request is refused that comes while so many wait that no more may: others' publishes would
#: wait with them.
CROWDED: Final = "too many requests wait already"
#: What such a request is answered with. A ping is not: its sender would take itself for replaced.
CROWDED_REFUSALS: Final = {
    c.SID_CONNECT: messages.connect_error(c.CROWDED),
    c.SID_SUBSCRIBE: messages.subscription_error(c.CROWDED),
    c.SID_UNSUBSCRIBE: messages.subscription_error(c.CROWDED),
    c.SID_SUB_CLOSE: messages.subscription_error(c.CROWDED),
    c.SID_CLOSE: messages.close_response(c.CROWDED),
}
