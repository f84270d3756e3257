"""Deliveries: which stored message goes to whom, and what is in flight, over C buffers.

The lower half of the core of the broker. It reads durable messages from the stores, puts them on
the wire and into the windows of those who get them, and takes acknowledgements out of the windows;
what arrives is the upper half's (``publishing.pyx``). An actor without I/O and a clock. Nothing
that is not durable ever reaches ``deliveries``.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from heapq import heappop, heappush

from ftstan.broker.inflight cimport Pending
from ftstan.broker.state cimport Channel, Listener, Subscription
from ftstan.wire.block cimport GAP, MsgBlock
from ftstan.wire.codec cimport Span, put_redelivery, redelivery_size
from ftstan.wire.frames cimport OutBuf

from ftstan.base.errors import FtstanError, StoreError

cdef enum:
    #: Messages and bytes asked of the store in one read for a subscription that lags behind.
    READ_MSGS = 1024
    READ_BYTES = 1 << 20
    #: Times of first deliveries that a subscription keeps beside twice what it has in flight.
    FIRST_AT_SPARE = 8


cdef class Delivery:
    """What ``Core`` delivers with."""

    def __init__(self):
        self.deliveries = OutBuf()
        self.tracer = None
        self.with_events = []
        self.ready = []
        self.given = 0
        self.latest = 0
        self.offers = 0
        self.limit = 0
        self.share = 0
        self.emitted_to = []
        self.cached = []
        self.batch = 1
        self.max_payload = 1 << 20

    def arm(self, sub, at):
        """Run ``on_ack_timer(sub)`` at ``at`` (monotonic ns)."""
        raise FtstanError("Core is not a broker")

    def on_read_error(self, sub, error):
        """The store could not give the next message of a subscription."""
        raise FtstanError("Core is not a broker")

    def on_skipped(self, sub, seq, size):
        """A message of ``size`` bytes is not delivered to a subscription: the NATS server does not
        carry it.
        """
        raise FtstanError("Core is not a broker")

    cdef int acked(self, Subscription sub, uint64_t seq) except -1:
        """The subscription no longer waits for this ack; if that opens its window, messages may
        come.
        """
        if not sub.pending.remove(seq):
            return 0
        self.note_event(sub, seq, True)
        if sub.stalled and sub.pending.used < sub.max_in_flight:
            sub.stalled = False
            self.enqueue(sub)
        if sub.group is not None:
            sub.group.update(sub)
        return 0

    cdef int note_event(self, Subscription sub, uint64_t seq, bint acked) except -1:
        cdef Channel channel = sub.channel
        if channel.events.count == 0:
            self.with_events.append(channel)
        channel.events.add(sub.sub_id, seq, acked)
        return 0

    cpdef note_implied_ack(self, Subscription sub, uint64_t seq):
        """A pending message that no longer exists counts as acknowledged."""
        self.acked(sub, seq)

    def mark_failed(self, Subscription sub not None, bint failed):
        """The client of the subscription misses its heartbeats, or answers them again."""
        sub.hb_failed = failed
        if sub.group is not None:
            sub.group.update(sub)

    cpdef enqueue(self, Listener who):
        """Offer available messages to the listener in the next ``settle``; to its group, if it is a
        queue member.
        """
        if isinstance(who, Subscription) and (<Subscription>who).group is not None:
            who = (<Subscription>who).group
        if not who.queued:
            who.queued = True
            # Who had nothing to get meanwhile has saved nothing up.
            who.given = max(who.given, self.given)
            self.offers += 1
            heappush(self.ready, (who.given + who.channel.sent_size, self.offers, who))

    def drop_caches(self):
        """Blocks read for lagging subscriptions are kept for a second at most."""
        cdef Channel channel
        for channel in self.cached:
            channel.cache = None
        self.cached.clear()

    # ---- out
    # ----------------------------------------------------------------------------------------------

    cdef MsgBlock locate(self, Channel channel, uint64_t seq):
        """A block whose messages include the first existing one at or after ``seq``; ``None`` if
        there is none.
        """
        if covers(channel.tail, seq):
            return channel.tail
        if covers(channel.cache, seq):
            return channel.cache
        cdef MsgBlock block = channel.store.read(seq, READ_MSGS, READ_BYTES)
        if block is not None:
            if channel.cache is None:
                self.cached.append(channel)
                if len(self.cached) > 64:
                    self.drop_caches()
                    self.cached.append(channel)
            channel.cache = block
        return block

    cdef Py_ssize_t filled(self) noexcept:
        """Bytes of this emit that are used up."""
        return <Py_ssize_t>(self.deliveries.used + self.passed)

    cdef int serve(self, Listener who) except -1:
        """Send new messages, each to whom the listener names, until it takes no more or there are
        none.

        Who has had its share of the emit goes on when nobody will have been given less with the
        next message: a long way to go, or messages of a megabyte, must not keep others waiting.
        """
        cdef Py_ssize_t before = self.filled()
        cdef bint has_more = self.give(who)
        who.given = max(who.given, self.given) + <uint64_t>(self.filled() - before)
        self.latest = max(self.latest, who.given)
        if has_more:
            self.enqueue(who)
        return 0

    cdef int serve_next(self) except -1:
        """Serve whoever waits and will have been given least with its next message."""
        cdef tuple offer = heappop(self.ready)
        cdef Listener who = offer[2]
        who.queued = False
        if self.ready and who.given + who.channel.sent_size > max(offer[0], self.ready[0][0]):
            # Its messages are larger than was known: others may be before it.
            self.enqueue(who)
            return 0
        self.given = max(self.given, who.given)
        self.serve(who)
        if not self.ready:
            # Nobody waits: they all begin together again.
            self.given = self.latest
        return 0

    cdef bint give(self, Listener who) except -1:
        """Send it its share; returns whether it is to be served again."""
        cdef Channel channel = who.channel
        cdef MsgBlock block
        cdef Subscription sub
        cdef uint64_t seq
        cdef uint64_t first
        cdef Py_ssize_t i
        cdef Py_ssize_t most = min(self.limit, self.filled() + self.share)
        while who.is_open():
            seq = who.last_sent + 1
            first = channel.store.first
            if seq < first:
                # Dropped by the limits; the blocks in memory may still hold them.
                who.last_sent = first - 1
                seq = first
            if seq > channel.durable:
                return False
            if self.filled() > most:
                return True
            try:
                block = self.locate(channel, seq)
            except StoreError as error:
                self.on_read_error(who.spokesman(), error)
                return False
            if block is None:
                return False
            i = block.find(seq)
            while (
                i < block.count
                and block.refs[i].seq <= channel.durable
                and self.filled() <= most
            ):
                sub = who.taker()
                if sub is None:
                    break
                self.send(sub, block, i, 0)
                i += 1
        return False

    cdef int send(self, Subscription sub, MsgBlock block, Py_ssize_t i, uint32_t count) except -1:
        """Put one message on the wire and into the window; what the NATS server does not carry is
        passed over.

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
        if size > self.max_payload:
            return self.pass_over(sub, seq, size)
        if size + extra > self.max_payload:
            # Stored by an original, or under a larger limit: without the mark of a resend is better
            # than not at all.
            extra = 0
        out = self.deliveries.pub(inbox, none, size + extra)
        memcpy(out, block.buf + block.refs[i].off + GAP, size)
        if extra:
            put_redelivery(out + size, count)
        sub.channel.sent_size = size
        self.out_msgs += 1
        self.out_bytes += size + extra
        if self.tracer is not None:
            self.tracer.sent(sub, seq, again=count > 0)
        self.redelivered += count != 0
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
        if sub.rules is not None:
            self.follow_rules(sub, p, seq)
        elif sub.timer_at == 0 or sub.timer_at > self.now + 2 * sub.ack_wait:
            # So far off only behind a reload that took rules with a long wait away.
            self.arm(sub, self.now + sub.ack_wait)
        return 0

    cdef int follow_rules(self, Subscription sub, Pending* p, uint64_t seq) except -1:
        """A message was sent for which the channel has rules: note its first delivery, and when it
        is due next.
        """
        cdef tuple waits = sub.rules.redelivery
        cdef dict first_at = sub.first_at
        if waits:
            p.expiry = self.now + <int64_t>waits[min(<Py_ssize_t>p.count, len(waits) - 1)]
        if seq not in first_at:
            if len(first_at) > 2 * sub.pending.used + FIRST_AT_SPARE:
                # What was acknowledged since, so many at a time that each is looked at twice.
                sub.first_at = first_at = {
                    one: at for one, at in first_at.items() if one in sub.pending
                }
            first_at[seq] = self.wall if p.count == 0 else -self.wall
        if sub.timer_at == 0 or sub.timer_at > p.expiry:
            # In the past it is what a resend behind its time has: then the wait counts from now.
            self.arm(sub, p.expiry if p.expiry > self.now else self.now + sub.ack_wait)
        return 0

    cdef int pass_over(self, Subscription sub, uint64_t seq, size_t size) except -1:
        """For the subscription the message is over, as if it had been sent and acknowledged: it
        must not end here.
        """
        self.skipped += 1
        # A batch has its bound in these, too: a channel may be full of them, and they are read.
        self.passed += size
        if sub.pending.find(seq) != NULL:
            self.acked(sub, seq)
        else:
            self.note_event(sub, seq, False)
            self.note_event(sub, seq, True)
        if seq > sub.last_sent:
            sub.last_sent = seq
        if sub.group is not None and seq > sub.group.last_sent:
            sub.group.last_sent = seq
        self.on_skipped(sub, seq, size)
        return 0

    cdef MsgBlock still(self, Channel channel, uint64_t seq, Py_ssize_t* i):
        """The block that has this very message, at ``i``; ``None`` if it no longer exists."""
        cdef MsgBlock block = self.locate(channel, seq) if seq >= channel.store.first else None
        if block is not None:
            i[0] = block.find(seq)
            if i[0] < block.count and block.refs[i[0]].seq == seq:
                return block
        return None

    def redeliver(self, Subscription sub not None, uint64_t seq):
        """Resend one pending message; returns False if it no longer exists (it then counts as
        acknowledged).
        """
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
        """Resend what a queue member has pending to the member that is chosen now; whoever gets it
        has it pending.
        """
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
        if chosen is None or p == NULL:
            return
        if chosen is not sub:
            move_first_at(sub, chosen, seq)
        self.send(chosen, block, i, next_count(p.count))
        if chosen is not sub:
            # Only now: after a crash between the two records both have it pending, which is better
            # than nobody.
            self.acked(sub, seq)

    def hand_over(
        self, Subscription old not None, Subscription new not None, uint64_t seq, int64_t expiry
    ):
        """A message of a member that leaves becomes pending with another one, which has not been
        sent it yet.
        """
        cdef Pending* p = old.pending.find(seq)
        cdef Pending* q
        cdef uint32_t count
        if p == NULL:
            return
        count = p.count
        if new.pending.find(seq) == NULL:
            self.note_event(new, seq, False)
        move_first_at(old, new, seq)
        q = new.pending.insert(seq)
        q.expiry = expiry
        q.count = count
        q.batch = 0
        if seq > new.last_sent:
            new.last_sent = seq
        old.pending.remove(seq)
        new.group.update(new)

    def encoded(self, Channel channel not None, uint64_t seq):
        """A stored message as it was encoded; ``None`` if it no longer exists. Raises
        ``StoreError``.
        """
        cdef Py_ssize_t i = 0
        cdef MsgBlock block = self.still(channel, seq, &i)
        return None if block is None else block.payload(i)

    def timestamp_of(self, Channel channel not None, uint64_t seq):
        """Timestamp (ns) of a stored message, 0 if it no longer exists."""
        cdef Py_ssize_t i = 0
        cdef MsgBlock block = self.still(channel, seq, &i)
        return 0 if block is None else block.refs[i].ts


cdef inline int move_first_at(Subscription old, Subscription new, uint64_t seq) except -1:
    """When a message was delivered first goes with it to another member of its group."""
    if old.first_at is not None and new.first_at is not None and seq in old.first_at:
        new.first_at[seq] = old.first_at[seq]
    return 0


cdef inline bint covers(MsgBlock block, uint64_t seq) noexcept:
    """Whether a sequence lies between the first and the last one of a block; ``None`` has none."""
    if block is None or block.count == 0:
        return False
    return block.refs[0].seq <= seq <= block.refs[block.count - 1].seq


cdef inline uint32_t next_count(uint32_t count) noexcept:
    """0 means "not resent", so the count goes on with 1 after the highest one."""
    return 1 if count == 0xFFFFFFFFU else count + 1
