from libc.stdint cimport int64_t, uint64_t

from ftstan.wire.codec cimport Span
from ftstan.wire.frames cimport Frame, OutBuf

cdef enum:
    #: Cells of ``Delays``: 64 for each power of two, so that none is wider than 1/64 of what it
    #: counts.
    CELLS = 4096

cdef class Delays:
    cdef uint64_t[CELLS] cells
    cdef readonly uint64_t count
    cdef readonly int64_t least
    cdef readonly int64_t most
    cdef void add(self, int64_t ns) noexcept nogil

cdef class Traffic:
    cdef readonly OutBuf out
    cdef readonly Delays delays
    cdef readonly uint64_t done
    cdef readonly uint64_t wanted
    cdef readonly list answers
    cdef readonly bytes complaint
    cdef bytearray kept
    cdef size_t max_payload
    cdef int take(self, Frame* frame, int64_t now) except -1
    cdef int control(self, Frame* frame) except -1

cdef class Publisher(Traffic):
    cdef readonly uint64_t refused
    cdef readonly bytes refusal
    cdef bytearray frame
    cdef bytes prefix
    cdef size_t guid_at
    cdef size_t data_at
    cdef uint64_t sent
    cdef uint64_t window
    cdef int64_t* sent_at
    cdef int take(self, Frame* frame, int64_t now) except -1

cdef class Subscriber(Traffic):
    cdef readonly uint64_t again
    cdef bytes ack_inbox
    cdef bytes channel
    cdef bytes mark
    cdef int take(self, Frame* frame, int64_t now) except -1
    cdef int acknowledge(self, uint64_t sequence) except -1
