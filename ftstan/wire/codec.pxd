from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef struct Span:
    const char* p
    size_t n

cdef struct PubMsg:
    Span client_id
    Span guid
    Span subject
    Span reply
    Span data
    Span conn_id

cdef struct Ack:
    Span subject
    uint64_t sequence

cdef const char* get_varint(const char* p, const char* end, uint64_t* out) noexcept nogil
cdef const char* get_bytes(const char* p, const char* end, Span* out) noexcept nogil
cdef const char* get_tag(const char* p, const char* end, int* field, int* wire_type) noexcept nogil
cdef const char* skip_field(const char* p, const char* end, int wire_type) noexcept nogil
cdef int read_pub_msg(const char* p, size_t n, PubMsg* out) noexcept nogil
cdef int read_ack(const char* p, size_t n, Ack* out) noexcept nogil
cdef bint read_ctrl_msg(const char* p, size_t n) noexcept nogil
cdef size_t varint_size(uint64_t v) noexcept nogil
cdef char* put_varint(char* p, uint64_t v) noexcept nogil
cdef char* put_field(char* p, uint8_t tag, const char* data, size_t n) noexcept nogil
cdef size_t field_size(size_t n) noexcept nogil
cdef size_t msg_proto_size(
    uint64_t seq, size_t subject, size_t reply, size_t data, int64_t ts
) noexcept nogil
cdef char* put_msg_proto(
    char* p, uint64_t seq, Span subject, Span reply, Span data, int64_t ts
) noexcept nogil
cdef size_t largest_delivery(size_t subject, size_t reply, size_t data) noexcept nogil
cdef size_t redelivery_size(uint32_t count) noexcept nogil
cdef char* put_redelivery(char* p, uint32_t count) noexcept nogil
