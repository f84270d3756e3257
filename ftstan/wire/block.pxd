from libc.stdint cimport int64_t, uint32_t, uint64_t

from ftstan.wire.codec cimport Span

cdef enum:
    #: Bytes kept free before each message, so that a store can put its record header there without
    #: moving anything.
    GAP = 8

cdef struct MsgRef:
    uint64_t seq
    int64_t ts
    size_t off      # of the gap; the message follows GAP bytes later
    uint32_t size   # of the encoded message

cdef class MsgBlock:
    cdef char* buf
    cdef size_t used
    cdef size_t cap
    cdef MsgRef* refs
    cdef Py_ssize_t count
    cdef Py_ssize_t refcap
    cdef Py_ssize_t exports
    cdef int grow(self, size_t more) except -1
    cdef int put_bytes(self, const char* p, size_t n) except -1
    cdef MsgRef* add_ref(self, uint64_t seq, int64_t ts, size_t off, uint32_t size) except NULL
    cdef int put(self, uint64_t seq, Span subject, Span reply, Span data, int64_t ts) except -1
    cdef Py_ssize_t find(self, uint64_t seq) noexcept
    cdef MsgRef* at(self, Py_ssize_t i) except NULL

cdef struct SubEvent:
    uint64_t sub_id
    uint64_t seq
    bint acked

cdef class SubEvents:
    cdef SubEvent* events
    cdef Py_ssize_t count
    cdef Py_ssize_t cap
    cdef int add(self, uint64_t sub_id, uint64_t seq, bint acked) except -1
