from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef struct Pending:
    uint64_t seq       # 0: the slot is free
    int64_t expiry     # ns on the monotonic clock; 0: unknown
    uint32_t count     # times it was resent
    uint32_t batch     # the emit in which it was last sent

cdef class InFlight:
    cdef Pending* slots
    cdef size_t mask
    # Entries that are not in the slot of their sequence.
    cdef readonly size_t displaced
    # Whether something took a long walk, and whether slots come from all bits of a sequence since.
    cdef bint is_crowded
    cdef bint is_mixed
    cdef readonly Py_ssize_t used
    cdef size_t home(self, uint64_t seq) noexcept nogil
    cdef Pending* find(self, uint64_t seq) noexcept nogil
    cdef Pending* insert(self, uint64_t seq) except NULL
    cdef bint remove(self, uint64_t seq) noexcept nogil
    cdef int resize(self, size_t cap) except -1
