from libc.stdint cimport int64_t, uint32_t, uint64_t

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


cdef inline bint holds(size_t n, uint64_t base, uint64_t offset, uint32_t size) noexcept nogil:
    """Whether ``n`` bytes from offset ``base`` on hold the record of ``size`` bytes at ``offset``,
    whatever the numbers are.
    """
    return (
        base <= offset
        and offset - base <= n
        and n - (offset - base) >= 8
        and n - (offset - base) - 8 >= size
    )
