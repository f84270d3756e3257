"""The per-message part of the broker: publishes and their acks, the acknowledgements of consumers,
and the steps of a batch, over C buffers.

An actor without I/O and without a clock. ``feed`` takes bytes of the NATS link and applies them to
memory; ``stage`` hands what must become durable to the store; after the commit and its confirmation
(``node/pipeline.py``, which also sends) ``settle`` turns what is durable into deliveries
(``delivery.pyx``, the lower half) and publisher acks. Decisions per client or subscription are
plain Python in ``ftstan.broker.broker``, which subclasses ``Core``; no Python object is made per
message.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp

from ftstan.broker.delivery cimport Delivery
from ftstan.broker.keymap cimport KeyMap
from ftstan.broker.state cimport Channel, Listener, Subscription
from ftstan.wire.block cimport MsgBlock
from ftstan.wire.codec cimport (
    Ack,
    PubMsg,
    Span,
    field_size,
    largest_delivery,
    put_field,
    read_ack,
    read_ctrl_msg,
    read_pub_msg,
)
from ftstan.wire.frames cimport HMSG, MSG, OVERSIZED, Frame, OutBuf, next_frame

from hashlib import blake2b

from ftstan.broker.bounds import LARGE, MAX_ID, MAX_NAME, MAX_REQUEST
from ftstan.broker.constants import LATEST
from ftstan.base.errors import FtstanError, StoreError, WireError

#: What a publisher gets for every publish that is refused before it is stored.
INVALID_PUBLISH = b"stan: invalid publish request"
#: What a publisher gets for a channel that an operator has marked as moved.
HAS_MOVED = b"stan: channel has moved"
#: A message that could be stored and not be delivered, for it grows on the way: sequence, time,
#: mark of a resend.
TOO_LARGE = (
    "stan: invalid publish request: up to {size} bytes when delivered, "
    "the NATS server carries {most}"
)
#: A publish for another channel than that of its subject. The permissions of NATS are on subjects,
#: and so is the choice of the partition: a message that named another channel would get past both.
WRONG_SUBJECT = b"stan: invalid publish request: published on the subject of another channel"
#: What the log says of a message that was passed over.
OVERSIZED_MESSAGE = (
    "{size} bytes, the NATS server of this link carries {most}: "
    "another server's max_payload is larger"
)
#: Why a request is refused whose answer would go where servers listen.
SERVERS_REPLY = "reply subject of a server"

#: Sids from here on belong to ack inboxes; those between that of the publish subject and this one
#: to requests. Of a partitioned server the publish subjects have the first ones from here on, up to
#: ``publish_end``.
FIRST_ACK_SID = 64

cdef enum:
    _PUBLISH = 1
    _FIRST_ACK = 64
    OURS_SIZE = 4
    #: Channels written to in one batch: each may cost a few syncs, and a batch of ten thousand
    #: would look like storage that hangs.
    BATCH_CHANNELS = 256
    #: Bytes of new messages that one listener gets before the others have their turn.
    SHARE = 256 << 10
    #: In the place of a channel of the batch: the ack depends on none of them.
    DURABLE = -1
    #: Nanoseconds between a batch that was refused and the next message of its channel. Far more
    #: than one owner's times are apart from the next one's (``Broker._adopt``), and little enough
    #: for thousands of refusals a second.
    REFUSED_STEP = 1 << 16

cdef int64_t latest = LATEST
cdef size_t most_of_request = MAX_REQUEST
cdef size_t most_of_name = MAX_NAME
cdef size_t most_of_id = MAX_ID

#: What the guids of our own client begin with.
cdef const char* OURS = "ft1."


cdef class Core(Delivery):
    """What ``Broker`` is made of."""

    def __init__(self):
        Delivery.__init__(self)
        self.clients = KeyMap()
        self.conns = KeyMap()
        self.channels = KeyMap()
        self.by_sid = {}
        self.replies = OutBuf()
        self.acks = OutBuf()
        self.touched = []
        #: Publishes that were stored before; ``None``: every publish is a new one.
        self.window = None
        #: While this owner is leaving: every publish taken, as connection id (or client id), a zero
        #: byte, guid, and beside it the channel; one that names none of them, or too long ones, as
        #: a zero byte and a digest of all of it, beside no channel.
        self.taken = None
        #: For a successor: publishes that the former owner has answered, spelled in the same way,
        #: and how often. An owner of an older release names no channel.
        self.answered = None
        #: What stands before the channel in a publish subject, the dot included.
        self.publish_prefix = b""
        self.publish_end = _FIRST_ACK
        #: Whether a publish can come for several of the publish subjects.
        self.has_second_copies = False
        #: Of channels that are on their way here, by the sids of their publish subjects: what keeps
        #: publishes, as ``keep(subject, reply, payload)``; ``None``: there are none.
        self.arriving = None
        #: Whether the publish of an unknown client may wait until another partition has told of it.
        self.holds_publishes = False
        #: First byte of the discovery subject, which is the operator's to choose.
        self.discovery_initial = 0

    def __dealloc__(self):
        PyMem_RawFree(self.ack_refs)

    # ---- in
    # ----------------------------------------------------------------------------------------------

    def feed(
        self,
        const unsigned char[::1] data not None,
        Py_ssize_t start,
        Py_ssize_t end,
        int64_t wall,
        int64_t now,
    ):
        """Apply whole frames of ``data[start:end]``; returns the position of the first one that was
        not applied.

        That is an incomplete one, or with ``is_full`` one that belongs to the next batch: this one
        has as many channels as a batch may have.
        ``wall``: nanoseconds since the epoch, ``now``: nanoseconds on the monotonic clock. Raises
        ``WireError`` if the bytes are not the NATS protocol.
        """
        cdef Frame f
        cdef Py_ssize_t took
        cdef const char* p
        cdef Subscription sub
        self.is_full = False
        if not 0 <= start <= end <= data.shape[0]:
            raise IndexError((start, end))
        self.wall = wall
        self.now = now
        if start == end:
            return start
        p = <const char*>&data[0]
        while start < end:
            if self.passing_over:
                if not self.leave_out(p, &start, end):
                    break
                continue
            if len(self.touched) >= BATCH_CHANNELS:
                self.is_full = True
                break
            took = next_frame(p + start, <size_t>(end - start), self.max_payload, &f)
            if took == 0:
                break
            if took == OVERSIZED:
                # The bytes of the payload and the end of the line behind it.
                self.passing_over = f.payload.n + 2
                start = f.payload.p - p
                self.on_malformed(
                    "message",
                    b"",
                    OVERSIZED_MESSAGE.format(size=f.payload.n, most=self.max_payload),
                )
                continue
            if took < 0:
                raise WireError(
                    "not the NATS protocol: "
                    f"{PyBytes_FromStringAndSize(p + start, min(end - start, 64))!r}"
                )
            start += took
            if f.kind == MSG or f.kind == HMSG:
                if f.sid == _PUBLISH:
                    self.publish(&f)
                elif f.sid >= self.publish_end:
                    found = self.by_sid.get(f.sid)
                    if found is not None:
                        sub = <Subscription>found
                        self.ack(&f, sub)
                elif f.sid >= _FIRST_ACK:
                    self.publish_here(&f)
                else:
                    self.request(&f)
            else:
                self.on_link(<int>f.kind, as_bytes(f.payload))
        return start

    cdef bint leave_out(self, const char* p, Py_ssize_t* start, Py_ssize_t end) except -1:
        """Leave out what has come of a message that is too large to be kept; whether that was the
        end of it.
        """
        cdef Py_ssize_t there = end - start[0]
        cdef Py_ssize_t some = min(there, <Py_ssize_t>self.passing_over - 2)
        if some > 0:
            start[0] += some
            self.passing_over -= some
            return True
        if there < 2:
            return False
        if memcmp(p + start[0], b"\r\n", 2) != 0:
            raise WireError("not the NATS protocol: a message is longer than its first line says")
        start[0] += 2
        self.passing_over = 0
        return True

    cdef int request(self, Frame* f) except -1:
        large = f.payload.n > most_of_request or f.headers.n > most_of_request
        self.on_request(
            f.sid,
            as_bytes(f.subject),
            as_bytes(f.reply),
            None if large else as_bytes(f.payload),
            b"" if large else as_bytes(f.headers),
        )
        return 0

    def on_request(self, sid, subject, reply, payload, headers):
        """A message for one of the request subjects or the reply inbox; ``payload`` is ``None`` if
        it is too large.
        """
        raise FtstanError("Core is not a broker")

    def on_link(self, kind, text):
        """A line of the link itself (PING, PONG, INFO, +OK, -ERR)."""
        raise FtstanError("Core is not a broker")

    def on_malformed(self, kind, client_id, reason):
        """A message that could not be carried out, whatever the server knows."""
        raise FtstanError("Core is not a broker")

    def on_refused(self, kind):
        """A well-formed message that was refused all the same."""
        raise FtstanError("Core is not a broker")

    def open_channel(self, name):
        """The channel for a first publish; raises ``StoreError`` with the text for the publisher.
        """
        raise FtstanError("Core is not a broker")

    def wait_for_channel(self, name, reply, payload):
        """Keep a publish to a channel that is not there, and that another batch will make.

        Returns nothing if it was kept, the text for the publisher if it is refused, ``None`` if the
        channel may be made now.
        """
        raise FtstanError("Core is not a broker")

    def is_second_copy(self, sid, channel):
        """Whether a publish for one of several publish subjects came for an earlier one too."""
        raise FtstanError("Core is not a broker")

    def may_publish_to(self, name):
        """Whether ``name`` may be that of a channel."""
        raise FtstanError("Core is not a broker")

    def is_servers(self, subject):
        """Whether servers listen on ``subject``."""
        raise FtstanError("Core is not a broker")

    def hold_publish(self, client_id, conn_id, subject, reply, payload):
        """Keep a publish of a client that is not registered yet; whether it was kept."""
        raise FtstanError("Core is not a broker")

    cdef int publish_here(self, Frame* f) except -1:
        """A publish for one of the subjects of a partitioned server."""
        cdef size_t n = <size_t>PyBytes_GET_SIZE(self.publish_prefix)
        cdef Span channel
        if self.arriving is not None and (keep := self.arriving.get(f.sid)) is not None:
            keep(as_bytes(f.subject), as_bytes(f.reply), as_bytes(f.payload))
            return 0
        if self.has_second_copies and f.subject.n >= n:
            channel.p = f.subject.p + n
            channel.n = f.subject.n - n
            if self.is_second_copy(f.sid, as_bytes(channel)):
                return 0
        return self.publish(f)

    cdef bint names_its_subject(self, Frame* f, PubMsg* m) except -1:
        """Whether the message is for the channel on whose subject it came."""
        cdef size_t n = <size_t>PyBytes_GET_SIZE(self.publish_prefix)
        if f.subject.n != n + m.subject.n:
            return False
        return memcmp(f.subject.p + n, m.subject.p, m.subject.n) == 0

    cdef bint is_for_servers(self, Span reply) except -1:
        """Whether an answer would go where servers listen. Most replies are known by their first
        bytes not to.
        """
        if reply.n == 0:
            return False
        if reply.p[0] != 0x5F and reply.p[0] != 0x24 and reply.p[0] != self.discovery_initial:
            return False
        if reply.n > 7 and memcmp(reply.p, "_INBOX.", 7) == 0:
            return False
        if reply.n > 11 and memcmp(reply.p, "_STAN.acks.", 11) == 0:
            return False
        return self.is_servers(as_bytes(reply))

    def publish_again(self, bytes subject not None, bytes reply not None, bytes payload not None):
        """Take a publish that ``hold_publish`` has kept."""
        # It was counted when it came, and noted: a second note would cost a repeat of it its
        # answer.
        self.in_msgs -= 1
        self.in_bytes -= <uint64_t>len(payload)
        taken, answered = self.taken, self.answered
        self.taken = self.answered = None
        try:
            self.publish_kept(subject, reply, payload)
        finally:
            self.taken, self.answered = taken, answered

    def publish_kept(self, bytes subject not None, bytes reply not None, bytes payload not None):
        """Take a publish that was kept before anybody looked at it."""
        cdef Frame f
        f.sid = _PUBLISH
        span_of(subject, &f.subject)
        span_of(reply, &f.reply)
        span_of(payload, &f.payload)
        self.publish(&f)

    cdef bint is_held(self, Frame* f, PubMsg* m) except -1:
        return self.holds_publishes and self.hold_publish(
            as_bytes(m.client_id),
            as_bytes(m.conn_id),
            as_bytes(f.subject),
            as_bytes(f.reply),
            as_bytes(f.payload),
        )

    cdef int publish(self, Frame* f) except -1:
        cdef PubMsg m
        cdef Channel channel
        cdef void* found
        cdef bint undecodable
        cdef size_t size
        self.in_msgs += 1
        self.in_bytes += f.payload.n
        undecodable = read_pub_msg(f.payload.p, f.payload.n, &m) != 0
        if self.is_for_servers(f.reply):
            self.on_malformed(
                "publish", b"" if undecodable else as_bytes(m.client_id), SERVERS_REPLY
            )
            return 0
        if undecodable:
            if not read_ctrl_msg(f.payload.p, f.payload.n):
                self.refuse_unnamed(f, &m, "undecodable PubMsg")
            return 0
        if m.guid.n == 0:
            self.refuse_unnamed(f, &m, "no guid")
            return 0
        if m.guid.n > most_of_id or m.client_id.n > most_of_id or m.conn_id.n > most_of_id:
            self.refuse_unnamed(
                f, &m, f"guid, client id or connection id of more than {MAX_ID} bytes"
            )
            return 0
        found = self.channels.find(m.subject.p, m.subject.n)
        if found == NULL and not 0 < m.subject.n <= most_of_name:
            wrong = "no legal channel name"
            if m.subject.n:
                wrong = f"channel of more than {MAX_NAME} bytes"
            self.refuse_unnamed(f, &m, wrong)
            return 0
        if self.hands_over() and self.is_answered(
            as_bytes(m.conn_id if m.conn_id.n else m.client_id) + b"\0" + as_bytes(m.guid),
            as_bytes(m.subject),
        ):
            return 0
        if found == NULL and not self.may_publish_to(as_bytes(m.subject)):
            self.refuse_invalid(f.reply, &m, "no legal channel name")
            return 0
        if not self.names_its_subject(f, &m):
            self.refuse(f.reply, m.guid, WRONG_SUBJECT)
            self.on_malformed(
                "publish", as_bytes(m.client_id), "another channel than that of its subject"
            )
            return 0
        if m.conn_id.n:
            if self.conns.find(m.conn_id.p, m.conn_id.n) == NULL:
                if not self.is_held(f, &m):
                    self.refuse_invalid(f.reply, &m, "unknown connection id")
                return 0
        elif self.clients.find(m.client_id.p, m.client_id.n) == NULL:
            if not self.is_held(f, &m):
                self.refuse_invalid(f.reply, &m, "unknown client id")
            return 0
        size = largest_delivery(m.subject.n, m.reply.n, m.data.n)
        if size > self.max_payload:
            # Not malformed: it may be what the client has always sent, and the NATS server's limit
            # that is new.
            self.refuse(
                f.reply, m.guid, TOO_LARGE.format(size=size, most=self.max_payload).encode()
            )
            self.on_refused("publish too large")
            return 0
        if self.tracer is not None:
            self.tracer.received(as_bytes(m.client_id), as_bytes(m.subject), as_bytes(m.guid))
        if found != NULL:
            return self.store_publish(f.reply, &m, <Channel>found)
        name = as_bytes(m.subject)
        refusal = self.wait_for_channel(name, as_bytes(f.reply), as_bytes(f.payload))
        if refusal is not None:
            if refusal:
                self.refuse_new(f.reply, &m, refusal)
            return 0
        try:
            channel = self.open_channel(name)
        except StoreError as error:
            self.refuse_new(f.reply, &m, error.text.encode())
            return 0
        return self.store_publish(f.reply, &m, channel)

    def take_waiting(self, Channel channel not None, bytes reply not None, bytes payload not None):
        """Take a publish that ``wait_for_channel`` has kept: it was looked at when it came, and
        its client may have gone since.
        """
        cdef PubMsg m
        cdef Span to
        span_of(reply, &to)
        read_pub_msg(PyBytes_AS_STRING(payload), <size_t>len(payload), &m)
        self.store_publish(to, &m, channel)

    def refuse_waiting(self, bytes reply not None, bytes payload not None, bytes error not None):
        """Refuse a publish that ``wait_for_channel`` has kept."""
        cdef PubMsg m
        cdef Span to
        span_of(reply, &to)
        read_pub_msg(PyBytes_AS_STRING(payload), <size_t>len(payload), &m)
        self.refuse_new(to, &m, error)

    cdef refuse_new(self, Span reply, PubMsg* m, bytes error):
        """Refuse a publish whose channel cannot be made."""
        self.refuse(reply, m.guid, error)
        self.on_refused("publish to a new channel")

    cdef int store_publish(self, Span reply, PubMsg* m, Channel channel) except -1:
        """Stage a publish of a client that may publish, unless its channel takes none."""
        cdef int64_t ts
        if channel.refused is not None:
            self.refuse(reply, m.guid, channel.refused)
            self.on_refused("publish to a closed channel")
            return 0
        if channel.mover is not None and (not channel.mover or self.sender(m) != channel.mover):
            # What was stored before the move must not be published again elsewhere.
            if not (self.may_be_known(m) and self.is_known(m, channel, reply)):
                self.refuse(reply, m.guid, HAS_MOVED)
                self.on_refused("publish to a moved channel")
            return 0
        ts = self.wall if self.wall > channel.last_ts else channel.last_ts
        if self.may_be_known(m) and self.is_repeat(m, channel, ts, reply):
            return 0
        if channel.staged is None:
            channel.staged = MsgBlock()
            self.touch(channel)
        channel.staged.put(channel.applied + 1, m.subject, m.reply, m.data, ts)
        channel.applied += 1
        channel.last_ts = ts
        self.acknowledge(reply, m, channel, channel.position)
        return 0

    cdef bytes sender(self, PubMsg* m):
        """The registered client that publishes: a connection id counts for more than the client id
        beside it. Empty, which no client is, if it has gone.
        """
        if m.conn_id.n == 0:
            return as_bytes(m.client_id)
        client = self.conns.get(as_bytes(m.conn_id))
        return b"" if client is None else <bytes>client.client_id

    def put_message(self, Channel channel not None, bytes reply not None, bytes data not None):
        """Stage a message of the server's own, as a publish without an ack; returns its sequence.

        Before ``stage``, and the channel takes messages. Whether it was stored says the commit.
        """
        cdef Span subject
        cdef Span answer
        cdef Span payload
        cdef int64_t ts = self.wall if self.wall > channel.last_ts else channel.last_ts
        subject.p = PyBytes_AS_STRING(channel.name)
        subject.n = <size_t>len(channel.name)
        answer.p = PyBytes_AS_STRING(reply)
        answer.n = <size_t>len(reply)
        payload.p = PyBytes_AS_STRING(data)
        payload.n = <size_t>len(data)
        if channel.staged is None:
            channel.staged = MsgBlock()
            self.touch(channel)
        channel.staged.put(channel.applied + 1, subject, answer, payload, ts)
        channel.applied += 1
        channel.last_ts = ts
        return channel.applied

    def staged_in(self, Channel channel not None):
        """Messages of the channel that wait for the commit, and their bytes."""
        if channel.staged is None:
            return 0, 0
        return channel.staged.count, channel.staged.used

    def delivered_size(self, Py_ssize_t channel, Py_ssize_t reply, Py_ssize_t data):
        """Bytes of a message when it is delivered, at the most, by the lengths of its fields."""
        return largest_delivery(<size_t>channel, <size_t>reply, <size_t>data)

    cdef bint is_repeat(self, PubMsg* m, Channel channel, int64_t ts, Span reply) except -1:
        """Acknowledge a publish that was stored before; a new one, to be stored at ``ts``, is put
        into the window.
        """
        if self.is_known(m, channel, reply):
            return True
        self.window.add(
            channel.name, as_bytes(m.guid), channel.applied + 1, ts, as_bytes(m.data)
        )
        return False

    cdef bint may_be_known(self, PubMsg* m) noexcept:
        """Whether the window is asked about a publish: only our clients' guids are in it."""
        return (
            self.window is not None
            and m.guid.n > OURS_SIZE
            and memcmp(m.guid.p, OURS, OURS_SIZE) == 0
        )

    cdef bint is_known(self, PubMsg* m, Channel channel, Span reply) except -1:
        """Answer a publish that was stored before, or of which that cannot be told."""
        cdef uint64_t seq
        try:
            seq = self.window.look(channel.name, as_bytes(m.guid), channel.store)
        except StoreError as error:
            # It may be there: stored now, it would be there twice.
            self.refuse(reply, m.guid, error.text.encode())
            self.on_refused("publish that may be a repeat")
            return True
        # A sequence beyond the log is that of a message which was taken away with the damage around
        # it.
        if seq == 0 or seq > channel.applied:
            return False
        self.acknowledge(reply, m, channel, channel.position if seq > channel.durable else DURABLE)
        return True

    cdef bint hands_over(self) noexcept:
        """Whether this server leaves, or follows one that has left: what one of them answers, the
        other one does not.
        """
        return self.taken is not None or self.answered is not None

    cdef bint is_answered(self, bytes key, bytes channel) except -1:
        """Whether the former owner has answered the publish that is called ``key`` in its channel;
        else it is noted as ours.
        """
        named = (key, channel)
        if self.answered is not None:
            for known in (named, (key, b"")):
                if left := self.answered.get(known, 0):
                    # As often as it was answered: a client that missed the answers may publish it
                    # again.
                    self.answered[known] = left - 1
                    return True
        if self.taken is not None:
            self.taken.append(named)
        return False

    cdef refuse_unnamed(self, Frame* f, PubMsg* m, str reason):
        """Refuse a publish that has no names to be known by: at a hand-over it is known by all of
        its bytes.
        """
        if self.hands_over() and self.is_answered(
            b"\0"
            + blake2b(as_bytes(f.reply) + b" " + as_bytes(f.payload), digest_size=16).digest(),
            b"",
        ):
            return
        self.refuse_invalid(f.reply, m, reason)

    cdef refuse_invalid(self, Span reply, PubMsg* m, str reason):
        """Refuse a publish that nothing can be done with; the log tells the operator why."""
        self.refuse(reply, m.guid, INVALID_PUBLISH)
        self.on_malformed("publish", as_bytes(m.client_id), reason)

    cdef refuse(self, Span reply, Span guid, bytes error):
        """An error ack, at once: it may overtake the good ones.

        A guid that is too long is not repeated: with the error, it could be more than the NATS
        server carries.
        """
        cdef Span none
        cdef char* p
        cdef size_t n = <size_t>len(error)
        if reply.n == 0:
            return
        if guid.n > most_of_id:
            guid.n = 0
        none.p = reply.p
        none.n = 0
        p = self.replies.pub(reply, none, field_size(guid.n) + field_size(n))
        p = put_field(p, 0x0A, guid.p, guid.n)
        put_field(p, 0x12, PyBytes_AS_STRING(error), n)

    cdef int acknowledge(
        self, Span reply, PubMsg* m, Channel channel, Py_ssize_t depends
    ) except -1:
        """Prepare the publisher's ack, and note on which channel of the batch (or ``DURABLE``) it
        depends.
        """
        cdef Py_ssize_t cap
        cdef PendingAck* ref
        cdef void* p
        cdef Span none
        if reply.n == 0:
            return 0
        if self.ack_count == self.ack_cap:
            cap = 256 if self.ack_cap == 0 else self.ack_cap * 2
            p = PyMem_RawRealloc(self.ack_refs, <size_t>cap * sizeof(PendingAck))
            if p == NULL:
                raise MemoryError
            self.ack_refs = <PendingAck*>p
            self.ack_cap = cap
        none.p = reply.p
        none.n = 0
        ref = &self.ack_refs[self.ack_count]
        ref.start = self.acks.used
        put_field(self.acks.pub(reply, none, field_size(m.guid.n)), 0x0A, m.guid.p, m.guid.n)
        ref.end = self.acks.used
        ref.channel = depends
        self.ack_count += 1
        if self.tracer is not None:
            self.tracer.taken(as_bytes(m.client_id), channel.name, as_bytes(m.guid))
        return 0

    cdef int touch(self, Channel channel) except -1:
        """The channel has a block to commit."""
        channel.position = len(self.touched)
        channel.active_at = self.now
        self.touched.append(channel)
        return 0

    cdef int ack(self, Frame* f, Subscription sub) except -1:
        cdef Ack a
        cdef Channel channel = sub.channel
        if f.payload.n > most_of_request:
            self.on_malformed("ack", sub.client_id, LARGE)
            return 0
        if read_ack(f.payload.p, f.payload.n, &a) != 0:
            self.on_malformed("ack", sub.client_id, "undecodable Ack")
            return 0
        if a.subject.n != <size_t>len(channel.name) or memcmp(
            a.subject.p, PyBytes_AS_STRING(channel.name), a.subject.n
        ) != 0:
            self.on_malformed("ack", sub.client_id, "another channel than that of its subscription")
            return 0
        if sub.pending.find(a.sequence) == NULL and sub.group is not None:
            # An ack counts wherever in the group the message is by now.
            sub = sub.group.holder(a.sequence)
        if sub is not None:
            if self.tracer is not None:
                self.tracer.acknowledged(sub, a.sequence)
            sub.acked_at = self.wall
            self.acked(sub, a.sequence)
        return 0

    # ---- the commit road
    # -----------------------------------------------------------------------------------------

    def stage(self):
        """Hand the applied messages to the stores; returns whether anything was touched."""
        cdef Channel channel
        for channel in self.touched:
            if channel.staged is not None:
                channel.store.append(channel.staged)
        return bool(self.touched)

    def settle(self, dict failed not None):
        """After commit and confirm: make deliveries of what is durable; ``failed`` maps channel
        names to errors.

        Returns whether more is to be delivered at once (the budget of one emit was used up).
        """
        cdef Channel channel
        cdef Listener who
        cdef Subscription sub
        cdef Py_ssize_t i
        cdef bint is_crowded
        if failed:
            self.fail_acks(failed)
        for channel in self.touched:
            if channel.name in failed:
                channel.applied = channel.store.last
                if self.window is not None:
                    # What was refused stays remembered on storage, under the sequences that come
                    # next: whatever is stored there must have another time, or a later owner would
                    # take an alike message for it.
                    channel.last_ts = min(channel.last_ts, latest - REFUSED_STEP) + REFUSED_STEP
            else:
                channel.tail = channel.staged
            channel.durable = channel.store.last
            channel.staged = None
        # Whatever is resent meanwhile, new messages have a part of every emit.
        self.limit = max(self.budget, self.filled() + self.budget // 4) if self.budget >= 0 else -1
        # Thousands may have a long way to go: at least one message for each.
        self.share = min(SHARE, (self.limit - self.filled()) // (len(self.ready) + 1))
        is_crowded = len(self.ready) > 0
        for channel in self.touched:
            if channel.tail is None:
                continue
            for i in range(len(channel.subs)):
                sub = <Subscription>channel.subs[i]
                if not sub.stalled and not sub.queued:
                    if is_crowded:
                        self.enqueue(sub)
                    else:
                        self.serve(sub)
            if channel.groups:
                for who in channel.groups.values():
                    if not who.queued:
                        if is_crowded:
                            self.enqueue(who)
                        else:
                            self.serve(who)
        while self.ready and self.filled() <= self.limit:
            self.serve_next()
        for channel in self.touched:
            channel.tail = None
        self.touched.clear()
        self.ack_count = 0
        return bool(self.ready)

    cdef fail_acks(self, dict failed):
        """Rewrite the acks of a batch in which some channels failed."""
        cdef OutBuf good = OutBuf()
        cdef Py_ssize_t i
        cdef PendingAck* ref
        cdef Frame f
        cdef list errors = []
        cdef Channel channel
        cdef Span reply
        cdef Span guid
        for channel in self.touched:
            error = failed.get(channel.name)
            errors.append(None if error is None else error.text.encode())
        for i in range(self.ack_count):
            ref = &self.ack_refs[i]
            error = None if ref.channel == DURABLE else errors[ref.channel]
            if error is None:
                good.put(self.acks.buf + ref.start, ref.end - ref.start)
                continue
            line = PyBytes_FromStringAndSize(
                self.acks.buf + ref.start, <Py_ssize_t>(ref.end - ref.start)
            )
            head, _, body = line.removesuffix(b"\r\n").partition(b"\r\n")
            self.refuse_again(head.split(b" ")[1], body, error)
        self.acks = good

    cdef refuse_again(self, bytes reply, bytes ack, bytes error):
        """An error ack from the good one that was prepared: its guid field, then the error."""
        cdef bytes tail = b"\x12" + encode_length(len(error)) + error
        self.replies.publish(reply, b"", ack + tail)

    def write_events(self):
        """Hand the sent and acknowledged sequences of this batch to their stores."""
        cdef Channel channel
        for channel in self.with_events:
            channel.store.add_events(channel.events)
        self.with_events.clear()

    def sent(self):
        """The output reached the link: forget it."""
        self.replies.clear()
        self.deliveries.clear()
        self.acks.clear()
        self.emitted_to.clear()
        self.passed = 0
        self.batch += 1

    def lost(self, int64_t now):
        """The output never left: drop it; what it delivered is due again at once. Returns those
        subscriptions.
        """
        cdef Subscription sub
        out = []
        for sub in self.emitted_to:
            if sub.rules is not None:
                # Nobody was sent it: it is no delivery after which a message is given up.
                for seq in sub.pending.take_back(self.batch):
                    sub.first_at.pop(seq, None)
            if sub.pending.expire_batch(self.batch, now):
                out.append(sub)
        self.sent()
        # The acks of what was applied and not committed yet went with the rest.
        self.ack_count = 0
        return out

cdef bytes encode_length(Py_ssize_t n):
    cdef bytearray out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


cdef inline void span_of(bytes data, Span* s) noexcept:
    """It points into ``data``, which somebody must keep."""
    s.p = PyBytes_AS_STRING(data)
    s.n = <size_t>PyBytes_GET_SIZE(data)


cdef inline bytes as_bytes(Span s):
    return PyBytes_FromStringAndSize(s.p, <Py_ssize_t>s.n)
