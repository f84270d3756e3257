from libc.stdint cimport int64_t, uint32_t, uint64_t

from ftstan.broker.inflight cimport Pending
from ftstan.broker.state cimport Channel, Listener, Subscription
from ftstan.wire.block cimport MsgBlock
from ftstan.wire.frames cimport OutBuf

cdef class Delivery:
    cdef readonly OutBuf deliveries
    # What writes a line for every message; None: nobody does.
    cdef public object tracer
    cdef readonly list with_events
    cdef readonly list ready
    cdef readonly list emitted_to
    cdef readonly list cached
    cdef public uint32_t batch
    cdef public int64_t now
    cdef public int64_t wall
    cdef public size_t max_payload
    # Bytes of deliveries in one emit; negative: none at all.
    cdef public Py_ssize_t budget
    # Bytes up to which new messages fill this emit.
    cdef Py_ssize_t limit
    # Bytes that one listener gets before the others have their turn.
    cdef Py_ssize_t share
    # Where their clock stands, and the latest that anybody has been given on it.
    cdef uint64_t given
    cdef uint64_t latest
    cdef uint64_t offers
    cdef readonly uint64_t out_msgs
    cdef readonly uint64_t out_bytes
    # Of out_msgs, those that a subscription had been sent before.
    cdef readonly uint64_t redelivered
    # Deliveries left out because the NATS server does not carry the message; bytes of them in this
    # batch.
    cdef readonly uint64_t skipped
    cdef readonly size_t passed
    cdef int send(self, Subscription sub, MsgBlock block, Py_ssize_t i, uint32_t count) except -1
    cdef int follow_rules(self, Subscription sub, Pending* p, uint64_t seq) except -1
    cdef int pass_over(self, Subscription sub, uint64_t seq, size_t size) except -1
    cdef int serve(self, Listener who) except -1
    cdef int serve_next(self) except -1
    cdef bint give(self, Listener who) except -1
    cdef Py_ssize_t filled(self) noexcept
    cdef MsgBlock still(self, Channel channel, uint64_t seq, Py_ssize_t* i)
    cdef int acked(self, Subscription sub, uint64_t seq) except -1
    cdef MsgBlock locate(self, Channel channel, uint64_t seq)
    cdef int note_event(self, Subscription sub, uint64_t seq, bint acked) except -1
    cpdef note_implied_ack(self, Subscription sub, uint64_t seq)
    cpdef enqueue(self, Listener who)
