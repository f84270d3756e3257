from libc.stdint cimport int64_t, uint32_t, uint64_t

from ftstan.broker.inflight cimport InFlight
from ftstan.wire.block cimport MsgBlock, SubEvents

cdef class Listener:
    cdef readonly Channel channel
    cdef public uint64_t last_sent
    cdef public bint on_hold
    cdef public bint queued
    # Bytes that it has been given, on a clock that all who wait share (``delivery.pyx``).
    cdef uint64_t given
    cdef bint is_open(self) except -1
    cdef Subscription taker(self)
    cdef Subscription spokesman(self)

cdef class Subscription(Listener):
    cdef readonly object client
    cdef readonly QueueGroup group
    cdef public uint64_t sub_id
    cdef public bytes inbox
    cdef public bytes ack_inbox
    cdef public uint64_t sid
    cdef public int max_in_flight
    cdef public int64_t ack_wait
    cdef readonly InFlight pending
    cdef public bint ready
    cdef public bint stalled
    cdef public bint hb_failed
    cdef public bint counted
    # Index in the channel's list of those that get every message.
    cdef public Py_ssize_t place
    cdef uint32_t emit_batch
    # When its ack timer runs, 0: it does not; and what takes it back.
    cdef public int64_t timer_at
    #: That timer's time where it was set because another member left messages to this one.
    cdef public int64_t moved_at
    cdef public object timer
    # When its client acknowledged something last (wall clock, ns), 0: not since recovery.
    cdef public int64_t acked_at
    cdef public bytes durable
    cdef public bytes client_id
    # What holds for deliveries that are not acknowledged; None: the ack wait, for ever. With it the
    # time of the first delivery (wall clock, ns) of messages in flight, and of some that were;
    # negative if others came before that nobody has counted.
    cdef public object rules
    cdef public dict first_at
    # The place in the group: its turn in the list, its neighbours there, its index in the heap or
    # -1.
    cdef uint64_t turn
    cdef Subscription ahead
    cdef Subscription behind
    cdef Py_ssize_t heap_at

cdef class QueueGroup(Listener):
    cdef readonly bytes name
    cdef public bint durable
    cdef public Subscription shadow
    # The member that is resent what the group had pending; new messages wait for it.
    cdef public Subscription resuming
    cdef public bint stored
    cdef public Py_ssize_t untreated
    cdef readonly Py_ssize_t size
    cdef readonly Subscription head
    cdef Subscription tail
    cdef uint64_t turns
    cdef void** heap
    cdef Py_ssize_t used
    cdef Py_ssize_t cap
    cpdef add(self, Subscription sub)
    cpdef remove(self, Subscription sub)
    cpdef update(self, Subscription sub)
    cdef Subscription choose(self)
    cdef Subscription choose_again(self)
    cdef Subscription holder(self, uint64_t seq)
    cdef Subscription take_turn(self, Subscription sub)
    cdef int link(self, Subscription sub) except -1
    cdef int unlink(self, Subscription sub) except -1
    cdef int put(self, Subscription sub, Py_ssize_t at) except -1
    cdef int rise(self, Subscription sub, Py_ssize_t at) except -1
    cdef int sink(self, Subscription sub, Py_ssize_t at) except -1

cdef class Channel:
    cdef readonly bytes name
    cdef public object store
    cdef public uint64_t applied
    cdef public uint64_t durable
    cdef public int64_t last_ts
    cdef public int64_t active_at
    # Bytes of the message of it that was delivered last.
    cdef size_t sent_size
    cdef MsgBlock staged
    cdef MsgBlock tail
    cdef MsgBlock cache
    cdef readonly SubEvents events
    cdef public list subs
    cdef public dict groups
    cdef public dict durables
    cdef public dict by_ack_inbox
    cdef public dict by_inbox
    cdef public Py_ssize_t stored_subs
    cdef Py_ssize_t position
    cdef public object refused
    # Who may still publish to it since it has moved; None: it has not.
    cdef public object mover
    # The rules of its subscriptions.
    cdef public object rules
