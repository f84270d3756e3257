from libc.stdint cimport uint64_t

from ftstan.wire.codec cimport Span

cdef enum Kind:
    MSG = 1
    HMSG = 2
    PING = 3
    PONG = 4
    INFO = 5
    OK = 6
    ERR = 7

cdef struct Frame:
    Kind kind
    uint64_t sid
    Span subject
    Span reply
    Span headers
    Span payload    # of INFO and -ERR: the rest of the line

#: A message that is too large to be kept: ``payload.p`` is where its ``payload.n`` bytes begin,
#: whether they are there or not.
cdef enum:
    OVERSIZED = -2

#: Bytes of one whole frame at ``p``; 0 if more are needed; -1 if the stream is broken,
#: ``OVERSIZED`` (below 0, too).
cdef Py_ssize_t next_frame(const char* p, size_t n, size_t max_payload, Frame* out) noexcept nogil

cdef class OutBuf:
    cdef char* buf
    cdef size_t used
    cdef size_t cap
    cdef Py_ssize_t exports
    cdef int grow(self, size_t more) except -1
    cdef char* pub(self, Span subject, Span reply, size_t size) except NULL
    cdef int put(self, const char* data, size_t n) except -1
