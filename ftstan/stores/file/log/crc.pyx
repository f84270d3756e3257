"""The checksum of records and index entries: CRC-32 with any polynomial
(``docs/compat/filestore.md``).

With the usual polynomial and a processor that multiplies without carries, long pieces are folded
(``crc_fold.h``): a fifth of the time of the tables. Pure computation on buffers.
"""

from libc.stdint cimport uint8_t, uint32_t

from ftstan.base.errors import ConfigError

cdef extern from "crc_fold.h":
    int crc_can_fold() noexcept nogil
    uint32_t crc_fold(uint32_t state, const char* p, size_t n) noexcept nogil

cdef enum:
    #: The shortest piece that can be folded.
    LEAST = 64


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

    cdef uint32_t of(self, const char* data, size_t n) noexcept nogil:
        cdef const uint8_t* p = <const uint8_t*>data
        cdef uint32_t c = 0xFFFFFFFFU
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
        return c ^ 0xFFFFFFFFU

    def __call__(self, const unsigned char[::1] data not None):
        """The CRC of ``data``."""
        if data.shape[0] == 0:
            return 0
        return self.of(<const char*>&data[0], <size_t>data.shape[0])
