"""What the core works on: subscriptions, queue groups, channels. No I/O, no clock; times are
nanoseconds.

**A queue group** gives each message to one member. Its members stand in a list; of those that may
get a new message (ready, window not full) the best is the one without failed heartbeats, with the
fewest pending messages, nearest to the head of the list, in this order of importance. Who is chosen
at the head of the list goes to its end, so that equal members take turns.
``docs/compat/protocol.md`` (queue groups) has the rules.

A group may have a thousand members, so nothing looks at all of them for a message: those that may
get one are a binary heap in the order above, every member knows its place in it, and a number
(``turn``) that grows towards the end of the list stands for the place there. Whoever changes what
the order depends on (``ready``, ``stalled``, ``hb_failed``, the number of pending messages) calls
``update``.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport uint64_t

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

from ftstan.broker.inflight cimport InFlight
from ftstan.wire.block cimport SubEvents


cdef class Listener:
    """Who gets each new message of a channel once, and its position, ``last_sent``: a subscription
    or a queue group.

    ``on_hold``: what recovery found pending goes out before new messages; ``queued``: it is offered
    messages in the next ``settle``.
    """

    cdef bint is_open(self) except -1:
        """Whether it may be given a message now."""
        return False

    cdef Subscription taker(self):
        """Who gets the next message; ``None`` if no window is open."""
        return None

    cdef Subscription spokesman(self):
        """The subscription that the log names when something is wrong."""
        return None


cdef class Subscription(Listener):
    """One subscription. ``client`` is ``None`` while a durable is offline.

    ``group``: that of a queue member; ``counted``: whether it is one of the channel's
    ``stored_subs``.
    """

    def __init__(self, Channel channel not None, uint64_t sub_id, QueueGroup group=None):
        self.channel = channel
        self.sub_id = sub_id
        self.group = group
        self.pending = InFlight()
        self.inbox = b""
        self.ack_inbox = b""
        self.durable = b""
        self.client_id = b""
        self.heap_at = -1
        self.set_rules(channel.rules)

    def set_rules(self, rules):
        """From now on these rules hold for what it does not acknowledge; ``None``: none."""
        self.rules = rules
        if rules is None:
            self.first_at = None
        elif self.first_at is None:
            self.first_at = {}

    def attach(self, client):
        """The client that gets the deliveries from now on; ``None``: nobody."""
        self.client = client

    cdef bint is_open(self) except -1:
        if not self.ready or self.on_hold or self.client is None:
            return False
        if self.pending.used >= self.max_in_flight:
            self.stalled = True
            return False
        return True

    cdef Subscription taker(self):
        return self if self.pending.used < self.max_in_flight else None

    cdef Subscription spokesman(self):
        return self

    def seen(self):
        """What monitoring shows of it (``ftstan.broker.views.SubRow``), in one step that no other
        thread can split.
        """
        cdef QueueGroup group = self.group
        return (
            self.client_id,
            self.inbox,
            self.ack_inbox,
            self.durable if group is None else b"",
            b"" if group is None else group.name,
            len(self.durable) > 0 if group is None else group.durable,
            self.client is None,
            self.max_in_flight,
            self.ack_wait,
            self.last_sent,
            self.pending.used,
            self.stalled,
        )


cdef bint better(Subscription a, Subscription b) noexcept:
    """Whether ``a`` is to get the next message before ``b``."""
    if a.hb_failed != b.hb_failed:
        return b.hb_failed
    if a.pending.used != b.pending.used:
        return a.pending.used < b.pending.used
    return a.turn < b.turn


cdef class QueueGroup(Listener):
    """The members of one queue group.

    ``shadow``: the subscription that keeps a durable group's state while it has no member;
    ``stored``: whether a record of the group was ever durable; ``untreated``: recovered members
    whose pending messages have not been looked at.
    """

    def __init__(self, Channel channel not None, bytes name not None):
        self.channel = channel
        self.name = name

    def __dealloc__(self):
        PyMem_RawFree(self.heap)

    # ---- the list
    # ----------------------------------------------------------------------------------------------

    def members(self, Py_ssize_t most=PY_SSIZE_T_MAX):
        """The first ``most`` members in the order of the list."""
        cdef list out = []
        cdef Subscription sub = self.head
        while sub is not None and len(out) < most:
            out.append(sub)
            sub = sub.behind
        return out

    @property
    def is_stalled(self):
        """Whether no member may get a new message."""
        return self.used == 0

    def carries(self):
        """Whether the record of a member carries the position."""
        cdef Subscription sub = self.head
        while sub is not None and sub.last_sent < self.last_sent:
            sub = sub.behind
        return sub is not None

    cpdef add(self, Subscription sub):
        """A new member, at the end of the list."""
        cdef void* p
        if self.size == self.cap:
            p = PyMem_RawRealloc(self.heap, <size_t>(self.cap * 2 + 4) * sizeof(void*))
            if p == NULL:
                raise MemoryError
            self.heap = <void**>p
            self.cap = self.cap * 2 + 4
        self.link(sub)
        self.size += 1
        self.update(sub)

    cpdef remove(self, Subscription sub):
        """The member leaves; the last of the list takes its place, as clients of the original have
        always seen it.
        """
        cdef Subscription last = self.tail
        sub.ready = False
        self.update(sub)
        self.size -= 1
        self.unlink(last)
        if last is sub:
            return
        last.turn = sub.turn
        last.ahead = sub.ahead
        last.behind = sub.behind
        if sub.ahead is None:
            self.head = last
        else:
            sub.ahead.behind = last
        if sub.behind is None:
            self.tail = last
        else:
            sub.behind.ahead = last
        sub.ahead = None
        sub.behind = None
        self.update(last)

    cdef int link(self, Subscription sub) except -1:
        self.turns += 1
        sub.turn = self.turns
        sub.ahead = self.tail
        if self.tail is None:
            self.head = sub
        else:
            self.tail.behind = sub
        self.tail = sub
        return 0

    cdef int unlink(self, Subscription sub) except -1:
        if sub.ahead is None:
            self.head = sub.behind
        else:
            sub.ahead.behind = sub.behind
        if sub.behind is None:
            self.tail = sub.ahead
        else:
            sub.behind.ahead = sub.ahead
        sub.ahead = None
        sub.behind = None
        return 0

    # ---- the choice
    # ----------------------------------------------------------------------------------------------

    def next_member(self, *, bint again=False):
        """Choose a member, which takes its turn; ``None`` if there is nobody. ``again``: for a
        redelivery.
        """
        return self.choose_again() if again else self.choose()

    cdef Subscription choose(self):
        """The member for a new message; ``None`` if no window is open."""
        if self.used == 0:
            return None
        return self.take_turn(<Subscription>self.heap[0])

    cdef bint is_open(self) except -1:
        return self.used != 0 and not self.on_hold and self.resuming is None

    cdef Subscription taker(self):
        cdef Subscription sub
        while True:
            sub = self.choose()
            if sub is None or sub.pending.used < sub.max_in_flight:
                return sub
            # Redeliveries have filled it over its window: somebody else may have room.
            sub.stalled = True
            self.update(sub)

    cdef Subscription spokesman(self):
        return self.head

    cdef Subscription choose_again(self):
        """The member for a redelivery, whatever the windows say: the best, else the first that can
        be served.
        """
        cdef Subscription sub
        if self.used and not (<Subscription>self.heap[0]).hb_failed:
            return self.take_turn(<Subscription>self.heap[0])
        sub = self.head
        while sub is not None and not sub.ready:
            sub = sub.behind
        return None if sub is None else self.take_turn(sub)

    cdef Subscription take_turn(self, Subscription sub):
        if sub is self.head and sub is not self.tail:
            self.unlink(sub)
            self.link(sub)
            self.update(sub)
        return sub

    cdef Subscription holder(self, uint64_t seq):
        """The member that has the message pending; ``None`` if nobody has."""
        cdef Subscription sub = self.head
        while sub is not None and sub.pending.find(seq) == NULL:
            sub = sub.behind
        return sub

    # ---- the heap
    # ----------------------------------------------------------------------------------------------

    cpdef update(self, Subscription sub):
        """Something that the choice depends on has changed."""
        cdef Py_ssize_t at = sub.heap_at
        cdef Subscription last
        if sub.ready and not sub.stalled:
            if at < 0:
                at = self.used
                self.used += 1
            self.rise(sub, at)
            self.sink(sub, sub.heap_at)
        elif at >= 0:
            self.used -= 1
            sub.heap_at = -1
            if at != self.used:
                last = <Subscription>self.heap[self.used]
                self.rise(last, at)
                self.sink(last, last.heap_at)

    cdef int put(self, Subscription sub, Py_ssize_t at) except -1:
        # Borrowed: the list keeps every member alive.
        self.heap[at] = <void*>sub
        sub.heap_at = at
        return 0

    cdef int rise(self, Subscription sub, Py_ssize_t at) except -1:
        cdef Subscription above
        while at > 0:
            above = <Subscription>self.heap[(at - 1) // 2]
            if not better(sub, above):
                break
            self.put(above, at)
            at = (at - 1) // 2
        self.put(sub, at)
        return 0

    cdef int sink(self, Subscription sub, Py_ssize_t at) except -1:
        cdef Py_ssize_t k
        cdef Subscription below
        while True:
            k = 2 * at + 1
            if k >= self.used:
                break
            if k + 1 < self.used and better(
                <Subscription>self.heap[k + 1], <Subscription>self.heap[k]
            ):
                k += 1
            below = <Subscription>self.heap[k]
            if not better(below, sub):
                break
            self.put(below, at)
            at = k
        self.put(sub, at)
        return 0


cdef class Channel:
    """One channel: what is applied, what is durable, and who listens.

    ``subs``: live subscriptions that get every message; ``groups``: queue groups by stored name;
    ``durables``: by client id and durable name, live or offline. ``active_at``: when a publish, or
    the end of the last subscription, was last applied (monotonic ns).
    """

    def __init__(self, bytes name not None, store):
        self.name = name
        self.store = store
        self.applied = self.durable = store.last
        self.last_ts = store.last_timestamp
        self.events = SubEvents()
        self.subs = []
        self.groups = {}
        self.durables = {}
        self.by_ack_inbox = {}
        self.by_inbox = {}

    def census(self):
        """Messages waiting for acks, stalled subscriptions, and how far the last reader is behind
        the last message.

        A queue group is one reader, and stalled when no member of it may get a message.
        """
        cdef Subscription sub
        cdef QueueGroup group
        cdef uint64_t pending = 0
        cdef uint64_t slowest = self.durable
        cdef Py_ssize_t stalled = 0
        for sub in self.subs:
            pending += <uint64_t>sub.pending.used
            stalled += sub.stalled
            slowest = min(slowest, sub.last_sent)
        for sub in self.durables.values():
            if sub.client is None:
                pending += <uint64_t>sub.pending.used
                slowest = min(slowest, sub.last_sent)
        for group in self.groups.values():
            slowest = min(slowest, group.last_sent)
            if group.shadow is not None:
                pending += <uint64_t>group.shadow.pending.used
            sub = group.head
            if sub is not None and group.used == 0:
                stalled += 1
            while sub is not None:
                pending += <uint64_t>sub.pending.used
                sub = sub.behind
        return pending, stalled, self.durable - slowest
