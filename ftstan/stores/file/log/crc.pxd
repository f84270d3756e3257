from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef inline uint32_t get32(const char* p) noexcept nogil:
    cdef const uint8_t* u = <const uint8_t*>p
    return <uint32_t>u[0] | <uint32_t>u[1] << 8 | <uint32_t>u[2] << 16 | <uint32_t>u[3] << 24


cdef inline uint64_t get64(const char* p) noexcept nogil:
    return <uint64_t>get32(p) | <uint64_t>get32(p + 4) << 32


cdef inline void put32(char* p, uint32_t v) noexcept nogil:
    p[0] = <char>(v & 0xFF)
    p[1] = <char>(v >> 8 & 0xFF)
    p[2] = <char>(v >> 16 & 0xFF)
    p[3] = <char>(v >> 24)


cdef inline void put64(char* p, uint64_t v) noexcept nogil:
    put32(p, <uint32_t>(v & 0xFFFFFFFFU))
    put32(p + 4, <uint32_t>(v >> 32))


cdef inline bint only_zeros(const char* p, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        if p[i] != 0:
            return False
    return True


cdef class Crc:
    cdef uint32_t[8][256] table
    cdef readonly uint32_t polynomial
    cdef readonly bint folded
    cdef uint32_t[64] powers
    cdef uint32_t of(self, const char* data, size_t n) noexcept nogil
    cdef uint32_t run(self, uint32_t state, const char* data, size_t n) noexcept nogil
    cdef uint32_t times(self, uint32_t a, uint32_t b) noexcept nogil
    cdef uint32_t behind(self, uint32_t state, size_t n) noexcept nogil


cdef class Sums:
    cdef readonly bytes data
    cdef const char* p
    cdef Crc crc
    cdef uint32_t* marks
    cdef size_t known
    cdef uint32_t until(self, size_t pos) noexcept nogil
    cdef uint32_t of(self, const char* piece, size_t n) noexcept nogil
