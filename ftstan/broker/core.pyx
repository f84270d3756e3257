"""The per-message part of the broker: publishes, acknowledgements and deliveries over C buffers.

An actor without I/O and without a clock. ``feed`` takes bytes of the NATS link and applies them to memory; ``stage``
hands what must become durable to the store; after the commit and its confirmation ``settle`` turns what is durable
into deliveries and publisher acks. Nothing that is not durable ever reaches ``deliveries``. Decisions per client or
subscription are plain Python in ``ftstan.broker.broker``, which subclasses ``Core``; no Python object is made per message.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from ftstan.broker.inflight cimport Pending
from ftstan.broker.keymap cimport KeyMap
from ftstan.broker.state cimport Channel, QueueGroup, Subscription
from ftstan.wire.block cimport GAP, MsgBlock
from ftstan.wire.codec cimport (
    Ack,
    PubMsg,
    Span,
    field_size,
    put_field,
    put_redelivery,
    read_ack,
    read_ctrl_msg,
    read_pub_msg,
    redelivery_size,
)
from ftstan.wire.frames cimport HMSG, MSG, Frame, OutBuf, next_frame

from ftstan.errors import FtstanError, StoreError, WireError
from ftstan.wire.subjects import valid_channel

#: What a publisher gets for every publish that is refused before it is stored.
INVALID_PUBLISH = b"stan: invalid publish request"

#: Sid of the publish subject; sids from FIRST_ACK_SID on belong to ack inboxes, those between to requests.
PUBLISH_SID = 1
FIRST_ACK_SID = 64

cdef enum:
    _PUBLISH = 1
    _FIRST_ACK = 64
    #: Messages and bytes asked of the store in one read for a subscription that lags behind.
    READ_MSGS = 1024
    READ_BYTES = 1 << 20
    OURS_SIZE = 4
    #: Channels written to in one batch, and requests: each may cost a few syncs, and a batch of ten thousand would look
    #: like storage that hangs.
    BATCH_CHANNELS = 256
    BATCH_REQUESTS = 256
    #: In the place of a channel of the batch: the ack depends on none of them.
    DURABLE = -1

#: What the guids of our own client begin with.
cdef const char* OURS = "ft1."


cdef class Core:
    """What ``Broker`` is made of."""

    def __init__(self):
        self.clients = KeyMap()
        self.conns = KeyMap()
        self.channels = KeyMap()
        self.by_sid = {}
        self.replies = OutBuf()
        self.deliveries = OutBuf()
        self.acks = OutBuf()
        self.touched = []
        self.with_events = []
        self.ready = []
        self.ready_groups = []
        self.emitted_to = []
        self.cached = []
        self.batch = 1
        self.max_payload = 1 << 20
        #: Publishes that were stored before; ``None``: every publish is a new one.
        self.window = None
        #: While this owner is leaving: every publish taken, as connection id (or client id), a zero byte, guid.
        self.taken = None
        #: For a successor: publishes that the former owner has answered, spelled in the same way.
        self.answered = None

    def __dealloc__(self):
        PyMem_RawFree(self.ack_refs)

    # ---- in ------------------------------------------------------------------------------------------------------

    def feed(self, const unsigned char[::1] data not None, Py_ssize_t start, Py_ssize_t end, int64_t wall, int64_t now):
        """Apply whole frames of ``data[start:end]``; returns the position of the first one that was not applied.

        That is an incomplete one, or with ``is_full`` one that belongs to the next batch, when this one has as many
        channels or requests as a batch may have.
        ``wall``: nanoseconds since the epoch, ``now``: nanoseconds on the monotonic clock. Raises ``WireError`` if the
        bytes are not the NATS protocol.
        """
        cdef Frame f
        cdef Py_ssize_t took
        cdef const char* p
        cdef Subscription sub
        cdef int requests = 0
        self.is_full = False
        if not 0 <= start <= end <= data.shape[0]:
            raise IndexError((start, end))
        self.wall = wall
        self.now = now
        if start == end:
            return start
        p = <const char*>&data[0]
        while start < end:
            if requests >= BATCH_REQUESTS or len(self.touched) >= BATCH_CHANNELS:
                self.is_full = True
                break
            took = next_frame(p + start, <size_t>(end - start), self.max_payload, &f)
            if took == 0:
                break
            if took < 0:
                raise WireError(
                    f"not the NATS protocol: {PyBytes_FromStringAndSize(p + start, min(end - start, 64))!r}"
                )
            start += took
            if f.kind == MSG:
                if f.sid == _PUBLISH:
                    self.publish(&f)
                elif f.sid >= _FIRST_ACK:
                    found = self.by_sid.get(f.sid)
                    if found is not None:
                        sub = <Subscription>found
                        self.ack(&f, sub)
                else:
                    requests += 1
                    self.on_request(f.sid, as_bytes(f.subject), as_bytes(f.reply), as_bytes(f.payload), b"")
            elif f.kind == HMSG:
                if f.sid == _PUBLISH:
                    self.publish(&f)
                elif f.sid >= _FIRST_ACK:
                    found = self.by_sid.get(f.sid)
                    if found is not None:
                        sub = <Subscription>found
                        self.ack(&f, sub)
                else:
                    requests += 1
                    self.on_request(
                        f.sid, as_bytes(f.subject), as_bytes(f.reply), as_bytes(f.payload), as_bytes(f.headers)
                    )
            else:
                self.on_link(<int>f.kind, as_bytes(f.payload))
        return start

    def on_request(self, sid, subject, reply, payload, headers):
        """A message for one of the request subjects or the reply inbox."""
        raise FtstanError("Core is not a broker")

    def on_link(self, kind, text):
        """A line of the link itself (PING, PONG, INFO, +OK, -ERR)."""
        raise FtstanError("Core is not a broker")

    def on_malformed(self, kind, client_id, reason):
        """A message that could not be carried out, whatever the server knows."""
        raise FtstanError("Core is not a broker")

    def open_channel(self, name):
        """The channel for a first publish; raises ``StoreError`` with the text for the publisher."""
        raise FtstanError("Core is not a broker")

    def arm(self, sub, at):
        """Run ``on_ack_timer(sub)`` at ``at`` (monotonic ns)."""
        raise FtstanError("Core is not a broker")

    def on_read_error(self, sub, error):
        """The store could not give the next message of a subscription."""
        raise FtstanError("Core is not a broker")

    cdef int publish(self, Frame* f) except -1:
        cdef PubMsg m
        cdef Channel channel
        cdef void* found
        cdef size_t start
        cdef char* p
        cdef int64_t ts
        cdef Span none
        self.in_msgs += 1
        self.in_bytes += f.payload.n
        none.p = f.payload.p
        none.n = 0
        if read_pub_msg(f.payload.p, f.payload.n, &m) != 0:
            if not read_ctrl_msg(f.payload.p, f.payload.n):
                self.refuse_invalid(f.reply, &m, "undecodable PubMsg")
            return 0
        if m.guid.n == 0:
            self.refuse_invalid(f.reply, &m, "no guid")
            return 0
        if (self.taken is not None or self.answered is not None) and self.is_answered(&m):
            return 0
        found = self.channels.find(m.subject.p, m.subject.n)
        if found == NULL and not valid_channel(as_bytes(m.subject)):
            self.refuse_invalid(f.reply, &m, "no legal channel name")
            return 0
        if m.conn_id.n:
            if self.conns.find(m.conn_id.p, m.conn_id.n) == NULL:
                self.refuse_invalid(f.reply, &m, "unknown connection id")
                return 0
        elif self.clients.find(m.client_id.p, m.client_id.n) == NULL:
            self.refuse_invalid(f.reply, &m, "unknown client id")
            return 0
        if found == NULL:
            try:
                channel = self.open_channel(as_bytes(m.subject))
            except StoreError as error:
                self.refuse(f.reply, m.guid, error.text.encode())
                return 0
        else:
            channel = <Channel>found
        if channel.refused is not None:
            self.refuse(f.reply, m.guid, channel.refused)
            return 0
        if (
            self.window is not None
            and m.guid.n > OURS_SIZE
            and memcmp(m.guid.p, OURS, OURS_SIZE) == 0
            and self.is_repeat(&m, channel, f.reply)
        ):
            return 0
        if channel.staged is None:
            channel.staged = MsgBlock()
            self.touch(channel)
        ts = self.wall if self.wall > channel.last_ts else channel.last_ts
        channel.staged.put(channel.applied + 1, m.subject, m.reply, m.data, ts)
        channel.applied += 1
        channel.last_ts = ts
        if f.reply.n:
            start = self.acks.used
            p = self.acks.pub(f.reply, none, field_size(m.guid.n))
            put_field(p, 0x0A, m.guid.p, m.guid.n)
            self.note_ack(start, channel.position)
        return 0

    cdef bint is_repeat(self, PubMsg* m, Channel channel, Span reply) except -1:
        """Acknowledge a publish that was stored before; a new one is put into the window."""
        cdef size_t start
        cdef char* p
        cdef Span none
        cdef bytes guid = as_bytes(m.guid)
        cdef uint64_t seq = self.window.look(channel.name, guid)
        # A sequence beyond the log is that of a message which was taken away with the damage around it.
        if seq == 0 or seq > channel.applied:
            self.window.add(channel.name, guid, channel.applied + 1)
            return False
        if reply.n:
            none.p = reply.p
            none.n = 0
            start = self.acks.used
            p = self.acks.pub(reply, none, field_size(m.guid.n))
            put_field(p, 0x0A, m.guid.p, m.guid.n)
            self.note_ack(start, channel.position if seq > channel.durable else DURABLE)
        return True

    cdef bint is_answered(self, PubMsg* m) except -1:
        """Note the publish; whether the former owner has answered it."""
        key = as_bytes(m.conn_id if m.conn_id.n else m.client_id) + b"\0" + as_bytes(m.guid)
        if self.taken is not None:
            self.taken.append(key)
        if self.answered is None or key not in self.answered:
            return False
        # Once: a client that missed the answer may publish it again.
        self.answered.discard(key)
        return True

    cdef refuse_invalid(self, Span reply, PubMsg* m, str reason):
        """Refuse a publish that nothing can be done with; the log tells the operator why."""
        self.refuse(reply, m.guid, INVALID_PUBLISH)
        self.on_malformed("publish", as_bytes(m.client_id), reason)

    cdef refuse(self, Span reply, Span guid, bytes error):
        """An error ack, at once: it may overtake the good ones."""
        cdef Span none
        cdef char* p
        cdef size_t n = <size_t>len(error)
        if reply.n == 0:
            return
        none.p = reply.p
        none.n = 0
        p = self.replies.pub(reply, none, field_size(guid.n) + field_size(n))
        p = put_field(p, 0x0A, guid.p, guid.n)
        put_field(p, 0x12, PyBytes_AS_STRING(error), n)

    cdef int note_ack(self, size_t start, Py_ssize_t channel) except -1:
        cdef Py_ssize_t cap
        cdef void* p
        if self.ack_count == self.ack_cap:
            cap = 256 if self.ack_cap == 0 else self.ack_cap * 2
            p = PyMem_RawRealloc(self.ack_refs, <size_t>cap * sizeof(PendingAck))
            if p == NULL:
                raise MemoryError
            self.ack_refs = <PendingAck*>p
            self.ack_cap = cap
        self.ack_refs[self.ack_count].start = start
        self.ack_refs[self.ack_count].end = self.acks.used
        self.ack_refs[self.ack_count].channel = channel
        self.ack_count += 1
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
            self.acked(sub, a.sequence)
        return 0

    cdef int acked(self, Subscription sub, uint64_t seq) except -1:
        """The subscription no longer waits for this ack; if that opens its window, messages may come."""
        if not sub.pending.remove(seq):
            return 0
        self.note_event(sub, seq, True)
        if sub.stalled and sub.pending.used < sub.max_in_flight:
            sub.stalled = False
            self.enqueue(sub)
        if sub.group is not None:
            sub.group.update(sub)
        return 0

    cdef note_event(self, Subscription sub, uint64_t seq, bint acked):
        cdef Channel channel = sub.channel
        if channel.events.count == 0:
            self.with_events.append(channel)
        channel.events.add(sub.sub_id, seq, acked)

    cpdef note_implied_ack(self, Subscription sub, uint64_t seq):
        """A pending message that no longer exists counts as acknowledged."""
        self.acked(sub, seq)

    def mark_failed(self, Subscription sub not None, bint failed):
        """The client of the subscription misses its heartbeats, or answers them again."""
        sub.hb_failed = failed
        if sub.group is not None:
            sub.group.update(sub)

    cpdef enqueue(self, Subscription sub):
        """Offer available messages to the subscription, or to its group, in the next ``settle``."""
        if sub.group is not None:
            self.enqueue_group(sub.group)
        elif not sub.queued:
            sub.queued = True
            self.ready.append(sub)

    cpdef enqueue_group(self, QueueGroup group):
        """Offer available messages to the group in the next ``settle``."""
        if not group.queued:
            group.queued = True
            self.ready_groups.append(group)

    # ---- the commit road -----------------------------------------------------------------------------------------

    def stage(self):
        """Hand the applied messages to the stores; returns whether anything was touched."""
        cdef Channel channel
        for channel in self.touched:
            if channel.staged is not None:
                channel.store.append(channel.staged)
        return bool(self.touched)

    def settle(self, dict failed not None):
        """After commit and confirm: make deliveries of what is durable; ``failed`` maps channel names to errors.

        Returns whether more is to be delivered at once (the budget of one emit was used up).
        """
        cdef Channel channel
        cdef Subscription sub
        cdef QueueGroup group
        cdef Py_ssize_t i
        cdef list ready
        if failed:
            self.fail_acks(failed)
        for channel in self.touched:
            if channel.name in failed:
                channel.applied = channel.store.last
            else:
                channel.tail = channel.staged
            channel.durable = channel.store.last
            channel.staged = None
        for channel in self.touched:
            if channel.tail is None:
                continue
            for i in range(len(channel.subs)):
                sub = <Subscription>channel.subs[i]
                if not sub.stalled and not sub.queued:
                    self.send_available(sub)
            if channel.groups:
                for group in channel.groups.values():
                    if not group.queued:
                        self.serve(group)
        ready = self.ready
        self.ready = []
        for sub in ready:
            sub.queued = False
            self.send_available(sub)
        ready = self.ready_groups
        self.ready_groups = []
        for group in ready:
            group.queued = False
            self.serve(group)
        for channel in self.touched:
            channel.tail = None
        self.touched.clear()
        self.ack_count = 0
        return bool(self.ready or self.ready_groups)

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
            line = PyBytes_FromStringAndSize(self.acks.buf + ref.start, <Py_ssize_t>(ref.end - ref.start))
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
        self.batch += 1

    def lost(self, int64_t now):
        """The output never left: drop it; what it delivered is due again at once. Returns those subscriptions."""
        cdef Subscription sub
        out = []
        for sub in self.emitted_to:
            if sub.pending.expire_batch(self.batch, now):
                out.append(sub)
        self.sent()
        # The acks of what was applied and not committed yet went with the rest.
        self.ack_count = 0
        return out

    def drop_caches(self):
        """Blocks read for lagging subscriptions are kept for a second at most."""
        cdef Channel channel
        for channel in self.cached:
            channel.cache = None
        self.cached.clear()

    # ---- out -----------------------------------------------------------------------------------------------------

    cdef MsgBlock locate(self, Channel channel, uint64_t seq):
        """A block whose messages include the first existing one at or after ``seq``; ``None`` if there is none."""
        cdef MsgBlock block = channel.tail
        if block is not None and block.count and block.refs[0].seq <= seq <= block.refs[block.count - 1].seq:
            return block
        block = channel.cache
        if block is not None and block.count and block.refs[0].seq <= seq <= block.refs[block.count - 1].seq:
            return block
        block = channel.store.read(seq, READ_MSGS, READ_BYTES)
        if block is not None:
            if channel.cache is None:
                self.cached.append(channel)
                if len(self.cached) > 64:
                    self.drop_caches()
                    self.cached.append(channel)
            channel.cache = block
        return block

    cdef int send_available(self, Subscription sub) except -1:
        """Send new messages until the window is full or there are no more."""
        cdef Channel channel = sub.channel
        cdef MsgBlock block
        cdef uint64_t seq
        cdef uint64_t first
        cdef Py_ssize_t i
        while sub.ready and not sub.on_hold and not sub.blocked and sub.client is not None:
            if sub.pending.used >= sub.max_in_flight:
                sub.stalled = True
                return 0
            seq = sub.last_sent + 1
            first = channel.store.first
            if seq < first:
                # Dropped by the limits; the blocks in memory may still hold them.
                sub.last_sent = first - 1
                seq = first
            if seq > channel.durable:
                return 0
            if self.deliveries.used > self.budget:
                self.enqueue(sub)
                return 0
            try:
                block = self.locate(channel, seq)
            except StoreError as error:
                self.on_read_error(sub, error)
                return 0
            if block is None:
                return 0
            i = block.find(seq)
            while i < block.count and block.refs[i].seq <= channel.durable:
                if sub.pending.used >= sub.max_in_flight or self.deliveries.used > self.budget:
                    break
                if not self.send(sub, block, i, 0):
                    return 0
                i += 1
        return 0

    cdef int serve(self, QueueGroup group) except -1:
        """Send new messages, each to the member that is chosen, until all windows are full or there are no more."""
        cdef Channel channel = group.channel
        cdef MsgBlock block
        cdef Subscription sub
        cdef uint64_t seq
        cdef uint64_t first
        cdef Py_ssize_t i
        while group.used and not group.on_hold and not group.blocked:
            seq = group.last_sent + 1
            first = channel.store.first
            if seq < first:
                group.last_sent = first - 1
                seq = first
            if seq > channel.durable:
                return 0
            if self.deliveries.used > self.budget:
                self.enqueue_group(group)
                return 0
            try:
                block = self.locate(channel, seq)
            except StoreError as error:
                self.on_read_error(group.head, error)
                return 0
            if block is None:
                return 0
            i = block.find(seq)
            while i < block.count and block.refs[i].seq <= channel.durable and self.deliveries.used <= self.budget:
                sub = group.choose()
                if sub is None:
                    return 0
                if sub.pending.used >= sub.max_in_flight:
                    # Redeliveries have filled it over its window: somebody else may have room.
                    sub.stalled = True
                    group.update(sub)
                    continue
                if not self.send(sub, block, i, 0):
                    return 0
                i += 1
        return 0

    cdef int send(self, Subscription sub, MsgBlock block, Py_ssize_t i, uint32_t count) except -1:
        """Put one message on the wire and into the window; 0 if it is too large for the link.

        ``count``: how often it has been resent, with this time; 0: it is new.
        """
        cdef Pending* p
        cdef Span inbox
        cdef Span none
        cdef char* out
        cdef size_t size = block.refs[i].size
        cdef uint64_t seq = block.refs[i].seq
        cdef size_t extra = 0
        cdef bint fresh
        inbox.p = PyBytes_AS_STRING(sub.inbox)
        inbox.n = <size_t>len(sub.inbox)
        none.p = inbox.p
        none.n = 0
        p = sub.pending.find(seq)
        fresh = p == NULL
        if count:
            extra = redelivery_size(count)
        if size + extra > self.max_payload:
            if sub.group is None:
                sub.blocked = True
            else:
                sub.group.blocked = True
            self.on_read_error(
                sub,
                StoreError(f"message {seq} has {size + extra} bytes, the NATS server takes {self.max_payload}"),
            )
            return 0
        out = self.deliveries.pub(inbox, none, size + extra)
        memcpy(out, block.buf + block.refs[i].off + GAP, size)
        if count:
            put_redelivery(out + size, count)
        self.out_msgs += 1
        self.out_bytes += size + extra
        if fresh:
            p = sub.pending.insert(seq)
            p.expiry = self.now + sub.ack_wait
            self.note_event(sub, seq, False)
            if seq > sub.last_sent:
                sub.last_sent = seq
            if count == 0 and sub.pending.used >= sub.max_in_flight:
                sub.stalled = True
            if sub.group is not None:
                if seq > sub.group.last_sent:
                    sub.group.last_sent = seq
                sub.group.update(sub)
        elif p.expiry == 0:
            p.expiry = self.now + sub.ack_wait
        else:
            p.expiry += sub.ack_wait
        p.count = count
        p.batch = self.batch
        if sub.emit_batch != self.batch:
            sub.emit_batch = self.batch
            self.emitted_to.append(sub)
        if sub.timer_at == 0:
            self.arm(sub, self.now + sub.ack_wait)
        return 1

    cdef MsgBlock still(self, Channel channel, uint64_t seq, Py_ssize_t* i):
        """The block that has this very message, at ``i``; ``None`` if it no longer exists."""
        cdef MsgBlock block = self.locate(channel, seq) if seq >= channel.store.first else None
        if block is not None:
            i[0] = block.find(seq)
            if i[0] < block.count and block.refs[i[0]].seq == seq:
                return block
        return None

    def redeliver(self, Subscription sub not None, uint64_t seq):
        """Resend one pending message; returns False if it no longer exists (it then counts as acknowledged)."""
        cdef Py_ssize_t i = 0
        cdef MsgBlock block
        cdef Pending* p
        if seq > sub.channel.durable:
            return True
        block = self.still(sub.channel, seq, &i)
        if block is None:
            self.acked(sub, seq)
            return False
        p = sub.pending.find(seq)
        self.send(sub, block, i, 1 if p == NULL else next_count(p.count))
        return True

    def pass_on(self, Subscription sub not None, uint64_t seq):
        """Resend what a queue member has pending to the member that is chosen now; whoever gets it has it pending."""
        cdef Subscription chosen
        cdef MsgBlock block
        cdef Py_ssize_t i = 0
        cdef Pending* p
        block = self.still(sub.channel, seq, &i)
        if block is None:
            self.acked(sub, seq)
            return
        chosen = sub.group.choose_again()
        p = sub.pending.find(seq)
        if chosen is None or p == NULL or not self.send(chosen, block, i, next_count(p.count)):
            return
        if chosen is not sub:
            # Only now: after a crash between the two records both have it pending, which is better than nobody.
            self.acked(sub, seq)

    def hand_over(self, Subscription old not None, Subscription new not None, uint64_t seq, int64_t expiry):
        """A message of a member that leaves becomes pending with another one, which has not been sent it yet."""
        cdef Pending* p = old.pending.find(seq)
        cdef Pending* q
        cdef uint32_t count
        if p == NULL:
            return
        count = p.count
        if new.pending.find(seq) == NULL:
            self.note_event(new, seq, False)
        q = new.pending.insert(seq)
        q.expiry = expiry
        q.count = count
        q.batch = 0
        if seq > new.last_sent:
            new.last_sent = seq
        old.pending.remove(seq)
        new.group.update(new)

    def timestamp_of(self, Channel channel not None, uint64_t seq):
        """Timestamp (ns) of a stored message, 0 if it no longer exists."""
        cdef Py_ssize_t i = 0
        cdef MsgBlock block = self.still(channel, seq, &i)
        return 0 if block is None else block.refs[i].ts


cdef inline uint32_t next_count(uint32_t count) noexcept:
    """0 means "not resent", so the count goes on with 1 after the highest one."""
    return 1 if count == 0xFFFFFFFFU else count + 1


cdef bytes encode_length(Py_ssize_t n):
    cdef bytearray out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


cdef inline bytes as_bytes(Span s):
    return PyBytes_FromStringAndSize(s.p, <Py_ssize_t>s.n)
