"""The checksum of records and index entries: CRC-32 with any polynomial
(``docs/compat/filestore.md``).

With the usual polynomial and a processor that multiplies without carries, long pieces are folded
(``crc_fold.h``): a fifth of the time of the tables. Pure computation on buffers.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from ftstan.base.errors import ConfigError

cdef extern from "crc_fold.h":
    int crc_can_fold() noexcept nogil
    uint32_t crc_fold(uint32_t state, const char* p, size_t n) noexcept nogil

cdef enum:
    #: The shortest piece that can be folded.
    LEAST = 64
    #: Bytes between two states that are kept.
    STEP = 4096


cdef class Crc:
    """Reflected CRC-32 with any polynomial (bit-reversed constant); eight tables, eight bytes a
    step.

    ``fold`` false: with the tables alone. ``folded``: whether long pieces are not.
    """

    def __init__(self, polynomial=0xEDB88320, bint fold=True):
        cdef uint32_t c
        cdef uint32_t before
        cdef int i
        cdef int k
        if not 1 <= polynomial <= 0xFFFFFFFF:
            raise ConfigError("crc polynomial should be between 1 and 4294967295")
        self.polynomial = polynomial
        self.folded = fold and self.polynomial == 0xEDB88320U and crc_can_fold()
        for i in range(256):
            c = <uint32_t>i
            for k in range(8):
                c = (c >> 1) ^ (self.polynomial if c & 1 else 0)
            self.table[0][i] = c
        for i in range(256):
            for k in range(1, 8):
                before = self.table[k - 1][i]
                self.table[k][i] = before >> 8 ^ self.table[0][before & 0xFF]
        # x to the power of 8, of 16, of 32, ...: one byte of zeros, two, four.
        self.powers[0] = 0x00800000U
        for i in range(1, 64):
            self.powers[i] = self.times(self.powers[i - 1], self.powers[i - 1])

    cdef uint32_t times(self, uint32_t a, uint32_t b) noexcept nogil:
        """The product of two polynomials modulo ours; the highest bit is the lowest power."""
        cdef uint32_t out = 0
        while a:
            if a & 0x80000000U:
                out ^= b
            a <<= 1
            b = b >> 1 ^ (self.polynomial if b & 1 else 0)
        return out

    cdef uint32_t behind(self, uint32_t state, size_t n) noexcept nogil:
        """What ``n`` bytes of zeros make of a state."""
        cdef int k = 0
        while n:
            if n & 1:
                state = self.times(self.powers[k], state)
            n >>= 1
            k += 1
        return state

    cdef uint32_t of(self, const char* data, size_t n) noexcept nogil:
        return self.run(0xFFFFFFFFU, data, n) ^ 0xFFFFFFFFU

    cdef uint32_t run(self, uint32_t state, const char* data, size_t n) noexcept nogil:
        """What the bytes make of a state."""
        cdef const uint8_t* p = <const uint8_t*>data
        cdef uint32_t c = state
        cdef uint32_t lo
        cdef uint32_t hi
        cdef size_t whole
        if self.folded and n >= LEAST:
            whole = n & ~<size_t>15
            c = crc_fold(c, data, whole)
            p += whole
            n -= whole
        while n >= 8:
            lo = get32(<const char*>p) ^ c
            hi = get32(<const char*>p + 4)
            c = (
                self.table[7][lo & 0xFF]
                ^ self.table[6][lo >> 8 & 0xFF]
                ^ self.table[5][lo >> 16 & 0xFF]
                ^ self.table[4][lo >> 24]
                ^ self.table[3][hi & 0xFF]
                ^ self.table[2][hi >> 8 & 0xFF]
                ^ self.table[1][hi >> 16 & 0xFF]
                ^ self.table[0][hi >> 24]
            )
            p += 8
            n -= 8
        while n > 0:
            c = (c >> 8) ^ self.table[0][(c ^ p[0]) & 0xFF]
            p += 1
            n -= 1
        return c

    def __call__(self, const unsigned char[::1] data not None):
        """The CRC of ``data``."""
        if data.shape[0] == 0:
            return 0
        return self.of(<const char*>&data[0], <size_t>data.shape[0])


cdef class Sums:
    """The checksums of pieces of ``data``, each in a time that does not grow with the piece.

    For a search that tries every place: what a client has made up may claim at each of them all
    that follows.
    """

    def __cinit__(self, bytes data not None, Crc crc not None):
        self.data = data
        self.p = PyBytes_AS_STRING(data)
        self.crc = crc
        self.known = 0
        self.marks = <uint32_t*>malloc((<size_t>len(data) // STEP + 1) * sizeof(uint32_t))
        if self.marks == NULL:
            raise MemoryError
        self.marks[0] = 0

    def __dealloc__(self):
        free(self.marks)

    cdef uint32_t until(self, size_t pos) noexcept nogil:
        """The state behind the first ``pos`` bytes, from 0 on."""
        cdef size_t k = pos // STEP
        while self.known < k:
            self.marks[self.known + 1] = self.crc.run(
                self.marks[self.known], self.p + self.known * STEP, STEP
            )
            self.known += 1
        return self.crc.run(self.marks[k], self.p + k * STEP, pos - k * STEP)

    cdef uint32_t of(self, const char* piece, size_t n) noexcept nogil:
        """The checksum of ``n`` bytes of the data, the first of which is at ``piece``."""
        cdef size_t at = <size_t>(piece - self.p)
        if n <= 2 * STEP:
            return self.crc.of(piece, n)
        return (
            self.crc.behind(self.until(at) ^ 0xFFFFFFFFU, n) ^ self.until(at + n) ^ 0xFFFFFFFFU
        )
