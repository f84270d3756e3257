"""A table from names to objects that can be asked with a piece of a C buffer: no Python object is made for a look-up."""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

import secrets


cdef inline uint64_t mix(uint64_t a, uint64_t b) noexcept nogil:
    a ^= b
    a *= 0x9E3779B97F4A7C15U
    return a ^ (a >> 29)


cdef inline uint64_t hash_of(const char* p, size_t n, uint64_t seed) noexcept nogil:
    """A seeded hash: names come from clients, who must not be able to choose collisions."""
    cdef uint64_t h = seed ^ (n * 0xFF51AFD7ED558CCDU)
    cdef uint64_t v
    while n >= 8:
        memcpy(&v, p, 8)
        h = mix(h, v)
        p += 8
        n -= 8
    v = 0
    memcpy(&v, p, n)
    h = mix(h, v)
    return mix(h, seed >> 7)


cdef class KeyMap:
    """A dictionary with bytes as keys that can be asked with a piece of a C buffer."""

    def __cinit__(self):
        self.objects = {}
        self.seed = <uint64_t>secrets.randbits(64)
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
        cdef uint64_t h = hash_of(PyBytes_AS_STRING(key), <size_t>len(key), self.seed)
        cdef size_t k = h & self.mask
        while self.slots[k].key != NULL:
            k = (k + 1) & self.mask
        self.slots[k].hash = h
        # Borrowed: ``objects`` keeps both alive for as long as they are in the table.
        self.slots[k].key = <void*>key
        self.slots[k].value = <void*>value
        return 0

    cdef void* find(self, const char* p, size_t n) noexcept:
        cdef uint64_t h = hash_of(p, n, self.seed)
        cdef size_t k = h & self.mask
        cdef Slot* s
        while True:
            s = &self.slots[k]
            if s.key == NULL:
                return NULL
            if (
                s.hash == h
                and <size_t>len(<bytes>s.key) == n
                and memcmp(PyBytes_AS_STRING(<bytes>s.key), p, n) == 0
            ):
                return s.value
            k = (k + 1) & self.mask

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
            self.rebuild(self.mask + 1)
        elif (<size_t>len(self.objects) + 1) * 2 > self.mask + 1:
            self.rebuild((self.mask + 1) * 2)
        else:
            self.place(key, value)

    def __delitem__(self, bytes key not None):
        cdef uint64_t h = hash_of(PyBytes_AS_STRING(key), <size_t>len(key), self.seed)
        cdef size_t hole = h & self.mask
        cdef size_t k
        value = self.objects.pop(key)
        while self.slots[hole].value != <void*>value or self.slots[hole].hash != h:
            hole = (hole + 1) & self.mask
        k = hole
        while True:
            k = (k + 1) & self.mask
            if self.slots[k].key == NULL:
                break
            if ((k - self.slots[k].hash) & self.mask) >= ((k - hole) & self.mask):
                self.slots[hole] = self.slots[k]
                hole = k
        self.slots[hole].key = NULL
        self.slots[hole].value = NULL
