"""Fixed values of the protocol (``docs/compat/protocol.md``, constants).

Times in nanoseconds unless the name says otherwise. Defaults of options are those of
``ftstan.config.options``.
"""

from ftstan.config.options import ServerOptions
from ftstan.wire.messages import PROTOCOL as PROTOCOL  # noqa: PLC0414  # re-exported: one place for all of them
from ftstan.wire.nuid import LENGTH as _NUID_LENGTH

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
#: The last time that a record can hold, Unix nanoseconds.
LATEST = (1 << 63) - 1

_DEFAULTS = ServerOptions()

HB_INTERVAL = _DEFAULTS.hb_interval
HB_TIMEOUT = _DEFAULTS.hb_timeout
HB_FAIL_COUNT = _DEFAULTS.hb_fail_count
MAX_CHANNELS = _DEFAULTS.limits.max_channels
MAX_SUBS = _DEFAULTS.limits.channel.max_subs
MAX_MSGS = _DEFAULTS.limits.channel.max_msgs
MAX_BYTES = _DEFAULTS.limits.channel.max_bytes
MAX_AGE = _DEFAULTS.limits.channel.max_age
MAX_INACTIVITY = _DEFAULTS.limits.channel.max_inactivity

#: How long a standalone server waits at its start for another one of its cluster id.
GUARD_TIMEOUT = 250 * MILLISECOND

#: Inboxes are this and a NUID; ack inboxes are as long (``client.py``).
INBOX_PREFIX = b"_INBOX."
ACK_INBOX_LENGTH = len(INBOX_PREFIX) + _NUID_LENGTH

#: Bytes of deliveries in one write; what is beyond them goes with the next.
EMIT_BUDGET = 4 << 20

#: How long a client that has the id of a new one may take to prove that it lives.
PROBE_TIMEOUT = 500 * MILLISECOND

#: Messages that expire within this time of a redelivery go with it.
REDELIVERY_LOOK_AHEAD = 15 * MILLISECOND

#: What a queue member had pending when it left is resent by the others this much later ...
MOVED_DELAY = 100 * MILLISECOND

#: ... as something that expired so long before.
MOVED_EXPIRY = SECOND

#: How long a partition waits for the connect of a client that publishes or subscribes already.
CONNECT_WITHIN = SECOND

#: A failing client that pings gets its next heartbeat this soon.
HEARTBEAT_AFTER_PING = MILLISECOND

#: Between the first heartbeats of two recovered clients; all of them come within a quarter of the
#: interval.
RECOVERED_BEAT_STEP = MILLISECOND

#: Recovered subscriptions whose redelivery is started in one turn of the loop: publishes are served
#: in between.
RECOVERED_PER_TURN = 64
#: Unacknowledged messages of theirs whose times are looked up in one turn.
RECOVERED_ENTRIES = 16_384

# Sids of the internal NATS subscriptions; those from core.FIRST_ACK_SID on belong to ack inboxes,
# or first to the publish subjects of a partitioned server.
SID_PUBLISH = 1
SID_CONNECT = 2
SID_SUBSCRIBE = 3
SID_UNSUBSCRIBE = 4
SID_SUB_CLOSE = 5
SID_CLOSE = 6
SID_PING = 7
SID_INBOX = 8
#: Where the question before a start is answered; whatever comes later says nothing.
SID_GUARD = 9

# Error texts that clients see (``docs/compat/protocol.md``, error strings). That of an invalid
# publish is in ``ftstan.broker.publishing``, that of a channel that is being deleted in
# ``ftstan.stores.interface``.
INVALID_CONNECT = "stan: invalid connection request"
INVALID_CLIENT_ID = "stan: invalid clientID: only alphanumeric and `-` or `_` characters allowed"
#: Ours, as the same of a subscription: the original has no bounds for names.
LONG_IN_CONNECT = "stan: invalid connection request: {what} of more than {most} bytes"
DUPLICATE_CLIENT = "stan: clientID already registered"
INVALID_SUBSCRIBE = "stan: invalid subscription request"
LONG_IN_SUBSCRIBE = "stan: invalid subscription request: {what} of more than {most} bytes"
MISSING_CLIENT_ID = "stan: clientID missing"
INVALID_ACK_WAIT = "stan: invalid ack wait time, should be >= 1s"
INVALID_MAX_IN_FLIGHT = "stan: invalid MaxInflight, should be >= 1"
INVALID_START = "stan: invalid start position"
INVALID_SUBJECT = "stan: invalid subject"
UNKNOWN_CLIENT = "stan: unknown clientID"
DUPLICATE_DURABLE = "stan: duplicate durable registration"
INVALID_UNSUBSCRIBE = "stan: invalid unsubscribe request"
UNKNOWN_CHANNEL = "stan: unknown channel"
INVALID_SUBSCRIPTION = "stan: invalid subscription"
INVALID_CLOSE = "stan: invalid close request"
#: Ours: the original takes new clients until it ends.
LAME_DUCK = "stan: server is in lame duck mode, connect to another one"
CLIENT_REPLACED = "client has been replaced or is no longer registered"
CROWDED = "stan: too many requests"
TOO_MANY_CHANNELS = "too many channels"
#: Ours: to make all of them at once would keep everybody waiting.
MANY_NEW_CHANNELS = "stan: too many new channels at one time"
TOO_MANY_SUBS = "too many subscriptions per channel"
NO_NUMBERS = "the channel takes nothing new: its files name {what} {number}, and nothing can follow"
DURABLE_QUEUE_COLON = (
    "stan: durable name of a durable queue subscriber can't contain the character ':'"
)
CASE_CLASH = (
    "rejecting channel {new} because channel {old} alreay exists (different cases not allowed)"
)
ZERO_BYTE = "mkdir {name}: invalid argument"

# What keeps a server from starting, in the original's words.
ANOTHER_SERVER = 'discovered another streaming server with cluster ID "{cluster_id}"'
ANOTHER_CLUSTER = 'cluster ID "{cluster_id}" does not match recovered value of "{recovered}"'

# What is wrong with a request whose text says less (``docs/compat/protocol.md``, malformed
# requests).
NO_HEARTBEAT_INBOX = "no heartbeat inbox"
EMPTY_PING = "empty"
STRANGE_INBOX = "not one of our heartbeats"
