from libc.stdint cimport uint64_t

cdef struct Slot:
    uint64_t hash
    void* key
    void* value

cdef class KeyMap:
    cdef Slot* slots
    cdef size_t mask
    cdef uint64_t[2] secret
    cdef readonly dict objects
    cdef Slot* slot_of(self, const char* p, size_t n) noexcept
    cdef void* find(self, const char* p, size_t n) noexcept
    cdef int rebuild(self, size_t cap) except -1
    cdef int place(self, bytes key, object value) except -1
