from libc.stdint cimport int64_t, uint64_t

from ftstan.wire.codec cimport Span

cdef enum:
    #: Bytes of an index entry.
    ENTRY = 32

cdef struct Stored:
    uint64_t seq
    int64_t ts
    Span subject
    Span reply
    Span data

cdef bint read_message(const char* p, size_t n, Stored* out) noexcept nogil
