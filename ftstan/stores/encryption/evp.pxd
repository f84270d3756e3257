cdef class Keys:
    cdef list _keys
    cdef void* _sealer
    cdef int _sealing
    cdef list _openers
    cdef int seal(
        self, int code, const char* nonce, const char* data, size_t n, char* to
    ) except -1
    cdef bint open(self, int code, const char* record, size_t n, char* to) except? False
