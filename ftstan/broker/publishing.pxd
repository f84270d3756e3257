from libc.stdint cimport int64_t, uint64_t

from ftstan.broker.delivery cimport Delivery
from ftstan.broker.keymap cimport KeyMap
from ftstan.broker.state cimport Channel, Subscription
from ftstan.wire.codec cimport PubMsg, Span
from ftstan.wire.frames cimport Frame, OutBuf

cdef struct PendingAck:
    size_t start
    size_t end
    Py_ssize_t channel

cdef class Core(Delivery):
    cdef readonly KeyMap clients
    cdef readonly KeyMap conns
    cdef readonly KeyMap channels
    cdef readonly dict by_sid
    cdef readonly OutBuf replies
    cdef readonly OutBuf acks
    cdef PendingAck* ack_refs
    cdef Py_ssize_t ack_count
    cdef Py_ssize_t ack_cap
    cdef readonly list touched
    # Whether the batch took less than there was.
    cdef public bint is_full
    # Bytes still to come of a message that is too large to be kept; 0 for a link that begins.
    cdef public uint64_t passing_over
    cdef public object window
    cdef public list taken
    cdef public dict answered
    cdef public bytes publish_prefix
    cdef public uint64_t publish_end
    cdef public bint has_second_copies
    cdef public bint holds_publishes
    cdef public object arriving
    cdef public char discovery_initial
    cdef readonly uint64_t in_msgs
    cdef readonly uint64_t in_bytes
    cdef bint leave_out(self, const char* p, Py_ssize_t* start, Py_ssize_t end) except -1
    cdef int request(self, Frame* f) except -1
    cdef int publish(self, Frame* f) except -1
    cdef int store_publish(self, Span reply, PubMsg* m, Channel channel) except -1
    cdef int publish_here(self, Frame* f) except -1
    cdef bint names_its_subject(self, Frame* f, PubMsg* m) except -1
    cdef bint is_for_servers(self, Span reply) except -1
    cdef bint is_held(self, Frame* f, PubMsg* m) except -1
    cdef int ack(self, Frame* f, Subscription sub) except -1
    cdef bint is_repeat(self, PubMsg* m, Channel channel, int64_t ts, Span reply) except -1
    cdef bint may_be_known(self, PubMsg* m) noexcept
    cdef bint is_known(self, PubMsg* m, Channel channel, Span reply) except -1
    cdef bint hands_over(self) noexcept
    cdef bytes sender(self, PubMsg* m)
    cdef bint is_answered(self, bytes key, bytes channel) except -1
    cdef int acknowledge(self, Span reply, PubMsg* m, Channel channel, Py_ssize_t depends) except -1
    cdef int touch(self, Channel channel) except -1
    cdef refuse_unnamed(self, Frame* f, PubMsg* m, str reason)
    cdef refuse_new(self, Span reply, PubMsg* m, bytes error)
    cdef refuse_invalid(self, Span reply, PubMsg* m, str reason)
    cdef refuse(self, Span reply, Span guid, bytes error)
    cdef fail_acks(self, dict failed)
    cdef refuse_again(self, bytes reply, bytes ack, bytes error)
