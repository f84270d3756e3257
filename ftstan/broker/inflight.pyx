"""What was sent to one subscription and not acknowledged: a hash table keyed by sequence.

Sequences come nearly in order, so the low bits of the sequence are the slot and a window of
consecutive ones never collides; insert, find and remove are O(1) however old the oldest entry is.
Sequence 0 does not exist and marks a free slot. Such a window is one run of slots, which a removal
need not look through while every entry has its own slot: it is counted how many have not.

Where sequences do not come so, that is a bad choice: a member of a group of 1,024 has every 1,024th
message, all of one slot; and a message that is never acknowledged is met again by each window. A
table that notices a long walk goes over to slots from all bits of the sequence, as if by chance,
and stays with that: its runs are short whatever the sequences are.
"""

from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from libc.stdlib cimport qsort

cdef struct Entry:
    int64_t expiry
    uint64_t seq


cdef int by_expiry(const void* a, const void* b) noexcept nogil:
    """Whether ``a`` comes before ``b``: by expiry, then sequence."""
    cdef const Entry* one = <const Entry*>a
    cdef const Entry* two = <const Entry*>b
    if one.expiry != two.expiry:
        return -1 if one.expiry < two.expiry else 1
    return (one.seq > two.seq) - (one.seq < two.seq)


cdef enum:
    _ODD = 0x9E3779B97F4A7C15
    #: Slots that an insertion or removal may look at before the table counts as crowded.
    _WALK = 8


cdef list in_order(Entry* entries, size_t n):
    """The sequences of ``n`` entries, sorted; frees the entries. In C: there may be a million of
    them in one window.
    """
    cdef size_t i
    try:
        with nogil:
            qsort(entries, n, sizeof(Entry), by_expiry)
        return [entries[i].seq for i in range(n)]
    finally:
        PyMem_RawFree(entries)


cdef class InFlight:
    """Pending sequences with expiry (ns), resend count and the emit that sent them."""

    def __cinit__(self):
        self.resize(16)

    def __dealloc__(self):
        PyMem_RawFree(self.slots)

    cdef size_t home(self, uint64_t seq) noexcept nogil:
        """The slot of a sequence, if it is free."""
        cdef uint64_t h
        if not self.is_mixed:
            return seq & self.mask
        h = seq * <uint64_t>_ODD
        return <size_t>((h ^ (h >> 32)) * <uint64_t>_ODD >> 32) & self.mask

    cdef int resize(self, size_t cap) except -1:
        cdef Pending* old = self.slots
        cdef size_t n = 0 if old == NULL else self.mask + 1
        cdef Pending* fresh = <Pending*>PyMem_RawCalloc(cap, sizeof(Pending))
        cdef size_t i
        cdef size_t k
        if fresh == NULL:
            raise MemoryError
        self.displaced = 0
        self.mask = cap - 1
        for i in range(n):
            if old[i].seq:
                k = self.home(old[i].seq)
                if fresh[k].seq:
                    self.displaced += 1
                while fresh[k].seq:
                    k = (k + 1) & (cap - 1)
                fresh[k] = old[i]
        PyMem_RawFree(old)
        self.slots = fresh
        return 0

    cdef Pending* find(self, uint64_t seq) noexcept nogil:
        cdef size_t k = self.home(seq)
        if seq == 0:
            return NULL
        while self.slots[k].seq:
            if self.slots[k].seq == seq:
                return &self.slots[k]
            k = (k + 1) & self.mask
        return NULL

    cdef Pending* insert(self, uint64_t seq) except NULL:
        """The entry of ``seq``, new and zeroed if it was not there."""
        cdef Pending* p = self.find(seq)
        cdef size_t k
        cdef int walked = 0
        if p != NULL:
            return p
        if seq == 0:
            raise ValueError("sequence 0 does not exist")
        if (<size_t>self.used + 1) * 2 > self.mask + 1:
            self.resize((self.mask + 1) * 2)
        if self.is_crowded and not self.is_mixed:
            self.is_mixed = True
            self.resize(self.mask + 1)
        k = self.home(seq)
        if self.slots[k].seq:
            self.displaced += 1
        while self.slots[k].seq:
            k = (k + 1) & self.mask
            walked += 1
        self.is_crowded |= walked > _WALK
        p = &self.slots[k]
        p.seq = seq
        p.expiry = 0
        p.count = 0
        p.batch = 0
        self.used += 1
        return p

    cdef bint remove(self, uint64_t seq) noexcept nogil:
        """Whether it was there. Later entries of the same run move up, so that no search ends too
        early.
        """
        cdef Pending* p = self.find(seq)
        cdef size_t hole
        cdef size_t k
        cdef size_t home
        cdef int walked = 0
        if p == NULL:
            return False
        hole = <size_t>(p - self.slots)
        if hole != self.home(seq):
            self.displaced -= 1
        k = hole
        while self.displaced:
            k = (k + 1) & self.mask
            if self.slots[k].seq == 0:
                break
            walked += 1
            home = self.home(self.slots[k].seq)
            if ((k - home) & self.mask) >= ((k - hole) & self.mask):
                # Displaced, since nobody's own slot lies so far ahead; no longer if the hole is its
                # own.
                if home == hole:
                    self.displaced -= 1
                self.slots[hole] = self.slots[k]
                hole = k
        self.is_crowded |= walked > _WALK
        self.slots[hole].seq = 0
        self.used -= 1
        return True

    def __len__(self):
        return self.used

    def __contains__(self, uint64_t seq):
        return self.find(seq) != NULL

    def steps(self, uint64_t seq):
        """How many slots a search for the sequence looks at."""
        cdef size_t k = self.home(seq)
        cdef size_t n = 1
        while self.slots[k].seq and self.slots[k].seq != seq:
            k = (k + 1) & self.mask
            n += 1
        return n

    def add(self, uint64_t seq, int64_t expiry=0, uint32_t count=0):
        """Insert or replace an entry."""
        cdef Pending* p = self.insert(seq)
        p.expiry = expiry
        p.count = count

    def resends(self, uint64_t seq):
        """How often an entry was resent; 0 if there is none."""
        cdef Pending* p = self.find(seq)
        return 0 if p == NULL else p.count

    def discard(self, uint64_t seq):
        """Remove an entry; returns whether it was there."""
        return self.remove(seq)

    def clear(self):
        """Remove everything."""
        self.used = 0
        PyMem_RawFree(self.slots)
        self.slots = NULL
        self.resize(16)

    def items(self):
        """``[(sequence, expiry, count), ...]`` by expiry, then sequence: the order of redelivery.
        """
        cdef size_t i
        cdef list out = []
        for i in range(self.mask + 1):
            if self.slots[i].seq:
                out.append((self.slots[i].expiry, self.slots[i].seq, self.slots[i].count))
        out.sort()
        return [(seq, expiry, count) for expiry, seq, count in out]

    def some(self, Py_ssize_t most):
        """Like ``items``, of ``most`` entries, whichever are found first."""
        cdef size_t i
        cdef list out = []
        for i in range(self.mask + 1):
            if self.slots[i].seq:
                out.append((self.slots[i].expiry, self.slots[i].seq, self.slots[i].count))
                if len(out) == most:
                    break
        out.sort()
        return [(seq, expiry, count) for expiry, seq, count in out]

    def due(self, int64_t limit):
        """``(sequences, next)``: entries with an expiry up to ``limit`` in order of redelivery, and
        the earliest other expiry (0 if there is none). Entries of unknown expiry count as due.
        """
        cdef size_t i
        cdef size_t n = 0
        cdef int64_t earliest = 0
        cdef Entry* found = <Entry*>PyMem_RawCalloc(self.used + 1, sizeof(Entry))
        if found == NULL:
            raise MemoryError
        for i in range(self.mask + 1):
            if self.slots[i].seq:
                if self.slots[i].expiry <= limit:
                    found[n].expiry = self.slots[i].expiry
                    found[n].seq = self.slots[i].seq
                    n += 1
                elif earliest == 0 or self.slots[i].expiry < earliest:
                    earliest = self.slots[i].expiry
        return in_order(found, n), earliest

    def sequences(self):
        """All sequences in their order."""
        cdef size_t i
        cdef size_t n = 0
        cdef Entry* found = <Entry*>PyMem_RawCalloc(self.used + 1, sizeof(Entry))
        if found == NULL:
            raise MemoryError
        for i in range(self.mask + 1):
            if self.slots[i].seq:
                found[n].seq = self.slots[i].seq
                n += 1
        return in_order(found, n)

    def clear_counts(self):
        """The next resend of every entry is its first again."""
        cdef size_t i
        for i in range(self.mask + 1):
            self.slots[i].count = 0

    def expire_batch(self, uint32_t batch, int64_t now):
        """Entries last sent in that emit are due at ``now``: it never reached anybody. Returns how
        many.
        """
        cdef size_t i
        cdef int n = 0
        for i in range(self.mask + 1):
            if self.slots[i].seq and self.slots[i].batch == batch:
                self.slots[i].expiry = now
                n += 1
        return n

    def take_back(self, uint32_t batch):
        """Entries last sent in that emit count as sent once less. Returns those that count as never
        sent now.
        """
        cdef size_t i
        cdef list never = []
        for i in range(self.mask + 1):
            if self.slots[i].seq and self.slots[i].batch == batch:
                if self.slots[i].count:
                    self.slots[i].count -= 1
                else:
                    never.append(self.slots[i].seq)
        return never
