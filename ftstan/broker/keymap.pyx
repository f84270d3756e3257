"""A table from names to objects that can be asked with a piece of a C buffer: no Python object is
made for a look-up.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

import secrets


cdef inline uint64_t rotated(uint64_t x, int by) noexcept nogil:
    return (x << by) | (x >> (64 - by))


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotated(v[1], 13) ^ v[0]
    v[0] = rotated(v[0], 32)
    v[2] += v[3]
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotated(v[1], 17) ^ v[2]
    v[2] = rotated(v[2], 32)


cdef uint64_t hash_of(const char* p, size_t n, const uint64_t* secret) noexcept nogil:
    """SipHash-1-3: names come from clients, who cannot choose collisions without knowing the 128
    bits of ``secret``.
    """
    cdef uint64_t[4] v
    cdef uint64_t word
    cdef uint64_t last = <uint64_t>n << 56
    v[0] = secret[0] ^ 0x736F6D6570736575U
    v[1] = secret[1] ^ 0x646F72616E646F6DU
    v[2] = secret[0] ^ 0x6C7967656E657261U
    v[3] = secret[1] ^ 0x7465646279746573U
    while n >= 8:
        memcpy(&word, p, 8)
        v[3] ^= word
        sip_round(v)
        v[0] ^= word
        p += 8
        n -= 8
    word = 0
    memcpy(&word, p, n)
    last |= word
    v[3] ^= last
    sip_round(v)
    v[0] ^= last
    v[2] ^= 0xFF
    sip_round(v)
    sip_round(v)
    sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def siphash(bytes data not None, uint64_t low, uint64_t high):
    """The hash of ``data`` under a key of two halves."""
    cdef uint64_t[2] secret
    secret[0] = low
    secret[1] = high
    return hash_of(PyBytes_AS_STRING(data), <size_t>len(data), secret)


cdef class KeyMap:
    """A dictionary with bytes as keys that can be asked with a piece of a C buffer."""

    def __cinit__(self):
        self.objects = {}
        # Not Python's own hash: an environment can set its seed (PYTHONHASHSEED).
        self.secret[0] = <uint64_t>secrets.randbits(64)
        self.secret[1] = <uint64_t>secrets.randbits(64)
        self.rebuild(64)

    def __dealloc__(self):
        PyMem_RawFree(self.slots)

    cdef int rebuild(self, size_t cap) except -1:
        cdef Slot* fresh = <Slot*>PyMem_RawCalloc(cap, sizeof(Slot))
        if fresh == NULL:
            raise MemoryError
        PyMem_RawFree(self.slots)
        self.slots = fresh
        self.mask = cap - 1
        for key, value in self.objects.items():
            self.place(key, value)
        return 0

    cdef int place(self, bytes key, object value) except -1:
        cdef uint64_t h = hash_of(PyBytes_AS_STRING(key), <size_t>len(key), self.secret)
        cdef size_t k = h & self.mask
        while self.slots[k].key != NULL:
            k = (k + 1) & self.mask
        self.slots[k].hash = h
        # Borrowed: ``objects`` keeps both alive for as long as they are in the table.
        self.slots[k].key = <void*>key
        self.slots[k].value = <void*>value
        return 0

    cdef Slot* slot_of(self, const char* p, size_t n) noexcept:
        """The slot that has the key, else the free one where the search ends."""
        cdef uint64_t h = hash_of(p, n, self.secret)
        cdef size_t k = h & self.mask
        cdef Slot* s
        while True:
            s = &self.slots[k]
            if s.key == NULL or (
                s.hash == h
                and <size_t>len(<bytes>s.key) == n
                and memcmp(PyBytes_AS_STRING(<bytes>s.key), p, n) == 0
            ):
                return s
            k = (k + 1) & self.mask

    cdef void* find(self, const char* p, size_t n) noexcept:
        return self.slot_of(p, n).value

    def steps(self, bytes key not None):
        """How many slots a search for the key looks at."""
        cdef size_t home = hash_of(PyBytes_AS_STRING(key), <size_t>len(key), self.secret)
        home &= self.mask
        cdef size_t at = <size_t>(
            self.slot_of(PyBytes_AS_STRING(key), <size_t>len(key)) - self.slots
        )
        return ((at - home) & self.mask) + 1

    def __len__(self):
        return len(self.objects)

    def __contains__(self, bytes key not None):
        return key in self.objects

    def get(self, bytes key not None):
        """The value, or ``None``."""
        return self.objects.get(key)

    def values(self):
        """All values."""
        return list(self.objects.values())

    def __setitem__(self, bytes key not None, value):
        known = key in self.objects
        self.objects[key] = value
        if known:
            # The dictionary keeps the key object that it has, and so does the slot.
            self.slot_of(PyBytes_AS_STRING(key), <size_t>len(key)).value = <void*>value
        elif (<size_t>len(self.objects) + 1) * 2 > self.mask + 1:
            self.rebuild((self.mask + 1) * 2)
        else:
            self.place(key, value)

    def __delitem__(self, bytes key not None):
        cdef size_t hole = <size_t>(
            self.slot_of(PyBytes_AS_STRING(key), <size_t>len(key)) - self.slots
        )
        cdef size_t k = hole
        # Alive until the slots say nothing of it.
        value = self.objects.pop(key)
        while True:
            k = (k + 1) & self.mask
            if self.slots[k].key == NULL:
                break
            if ((k - self.slots[k].hash) & self.mask) >= ((k - hole) & self.mask):
                self.slots[hole] = self.slots[k]
                hole = k
        self.slots[hole].key = NULL
        self.slots[hole].value = NULL
