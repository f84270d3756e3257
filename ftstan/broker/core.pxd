from libc.stdint cimport int64_t, uint32_t, uint64_t

from ftstan.broker.inflight cimport InFlight
from ftstan.wire.block cimport MsgBlock, SubEvents
from ftstan.wire.codec cimport PubMsg, Span
from ftstan.wire.frames cimport Frame, OutBuf

cdef struct Slot:
    uint64_t hash
    void* key
    void* value

cdef class KeyMap:
    cdef Slot* slots
    cdef size_t mask
    cdef uint64_t seed
    cdef readonly dict objects
    cdef void* find(self, const char* p, size_t n) noexcept
    cdef int rebuild(self, size_t cap) except -1
    cdef int place(self, bytes key, object value) except -1

cdef class Subscription:
    cdef readonly object client
    cdef readonly Channel channel
    cdef public uint64_t sub_id
    cdef public bytes inbox
    cdef public bytes ack_inbox
    cdef public uint64_t sid
    cdef public int max_in_flight
    cdef public int64_t ack_wait
    cdef public uint64_t last_sent
    cdef readonly InFlight pending
    cdef public bint ready
    cdef public bint stalled
    cdef public bint on_hold
    cdef public bint hb_failed
    cdef public bint queued
    cdef public bint blocked
    cdef uint32_t emit_batch
    cdef public int64_t timer_at
    cdef public bytes durable
    cdef public bytes client_id

cdef class Channel:
    cdef readonly bytes name
    cdef public object store
    cdef public uint64_t applied
    cdef public uint64_t durable
    cdef public int64_t last_ts
    cdef MsgBlock staged
    cdef MsgBlock tail
    cdef MsgBlock cache
    cdef readonly SubEvents events
    cdef public list subs
    cdef public dict durables
    cdef public dict by_ack_inbox
    cdef public dict by_inbox
    cdef public Py_ssize_t stored_subs
    cdef Py_ssize_t position
    cdef public object refused

cdef struct PendingAck:
    size_t start
    size_t end
    Py_ssize_t channel

cdef class Core:
    cdef readonly KeyMap clients
    cdef readonly KeyMap conns
    cdef readonly KeyMap channels
    cdef readonly dict by_sid
    cdef readonly OutBuf replies
    cdef readonly OutBuf deliveries
    cdef readonly OutBuf acks
    cdef PendingAck* ack_refs
    cdef Py_ssize_t ack_count
    cdef Py_ssize_t ack_cap
    cdef readonly list touched
    cdef readonly list with_events
    cdef readonly list ready
    cdef readonly list emitted_to
    cdef readonly list cached
    cdef public uint32_t batch
    cdef public int64_t wall
    cdef public int64_t now
    cdef public size_t max_payload
    cdef public size_t budget
    cdef public object window
    cdef public list taken
    cdef public set answered
    cdef readonly uint64_t in_msgs
    cdef readonly uint64_t in_bytes
    cdef readonly uint64_t out_msgs
    cdef readonly uint64_t out_bytes
    cdef int publish(self, Frame* f) except -1
    cdef int ack(self, Frame* f, Subscription sub) except -1
    cdef bint is_repeat(self, PubMsg* m, Channel channel, Span reply) except -1
    cdef bint is_answered(self, PubMsg* m) except -1
    cdef int note_ack(self, size_t start, Py_ssize_t channel) except -1
    cdef int send(self, Subscription sub, MsgBlock block, Py_ssize_t i, bint again) except -1
    cdef int send_available(self, Subscription sub) except -1
    cdef MsgBlock locate(self, Channel channel, uint64_t seq)
    cdef int touch(self, Channel channel) except -1
    cdef refuse(self, Span reply, Span guid, bytes error)
    cdef note_event(self, Subscription sub, uint64_t seq, bint acked)
    cpdef note_implied_ack(self, Subscription sub, uint64_t seq)
    cpdef enqueue(self, Subscription sub)
    cdef fail_acks(self, dict failed)
    cdef refuse_again(self, bytes reply, bytes ack, bytes error)
