from libc.stdint cimport int64_t, uint32_t, uint64_t

from ftstan.broker.keymap cimport KeyMap
from ftstan.broker.state cimport Channel, QueueGroup, Subscription
from ftstan.wire.block cimport MsgBlock
from ftstan.wire.codec cimport PubMsg, Span
from ftstan.wire.frames cimport Frame, OutBuf

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
    cdef readonly list ready_groups
    cdef readonly list emitted_to
    cdef readonly list cached
    cdef public uint32_t batch
    cdef public int64_t wall
    cdef public int64_t now
    cdef public size_t max_payload
    cdef public size_t budget
    # Whether the batch took less than there was.
    cdef public bint is_full
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
    cdef int send(self, Subscription sub, MsgBlock block, Py_ssize_t i, uint32_t count) except -1
    cdef int send_available(self, Subscription sub) except -1
    cdef int serve(self, QueueGroup group) except -1
    cdef MsgBlock still(self, Channel channel, uint64_t seq, Py_ssize_t* i)
    cdef int acked(self, Subscription sub, uint64_t seq) except -1
    cdef MsgBlock locate(self, Channel channel, uint64_t seq)
    cdef int touch(self, Channel channel) except -1
    cdef refuse_invalid(self, Span reply, PubMsg* m, str reason)
    cdef refuse(self, Span reply, Span guid, bytes error)
    cdef note_event(self, Subscription sub, uint64_t seq, bint acked)
    cpdef note_implied_ack(self, Subscription sub, uint64_t seq)
    cpdef enqueue(self, Subscription sub)
    cpdef enqueue_group(self, QueueGroup group)
    cdef fail_acks(self, dict failed)
    cdef refuse_again(self, bytes reply, bytes ack, bytes error)
