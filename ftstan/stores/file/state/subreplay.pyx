"""What the records of a ``subs.dat`` add up to, in C: a channel may have millions of them
(``docs/compat/filestore.md``).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from libc.stdint cimport uint32_t, uint64_t

from ftstan.stores.file.log.crc cimport Crc, get32, only_zeros
from ftstan.wire.codec cimport Span, get_bytes, get_tag, get_varint, skip_field


cdef enum:
    _ODD = 0x9E3779B97F4A7C15


cdef class SeqSet:
    """A set of sequences in C: open addressing, 0 marks a free place (no message has that
    sequence).

    Eight consecutive sequences lie side by side, in one cache line, and such groups as if by
    chance. All of them in one row would be a run that a removal has to look through to its end:
    with a hundred thousand of them, acknowledged in their order, five thousand million looks.
    """

    cdef uint64_t* slots
    cdef size_t mask
    cdef size_t used

    def __cinit__(self):
        self.slots = <uint64_t*>PyMem_RawCalloc(8, sizeof(uint64_t))
        if self.slots == NULL:
            raise MemoryError
        self.mask = 7

    def __dealloc__(self):
        PyMem_RawFree(self.slots)

    cdef inline size_t home(self, uint64_t seq) noexcept nogil:
        cdef uint64_t h = (seq >> 3) * <uint64_t>_ODD
        h = (h ^ (h >> 32)) * <uint64_t>_ODD
        return <size_t>((h >> 29) & ~<uint64_t>7 | (seq & 7)) & self.mask

    cdef Py_ssize_t add(self, uint64_t seq) except -1:
        """How many slots it looked at."""
        cdef Py_ssize_t looks = 1
        cdef size_t k
        if (self.used + 1) * 2 > self.mask + 1:
            self.grow()
        k = self.home(seq)
        while self.slots[k] != 0:
            if self.slots[k] == seq:
                return looks
            k = (k + 1) & self.mask
            looks += 1
        self.slots[k] = seq
        self.used += 1
        return looks

    cdef int grow(self) except -1:
        cdef uint64_t* old = self.slots
        cdef size_t cap = self.mask + 1
        cdef size_t i
        cdef uint64_t* fresh = <uint64_t*>PyMem_RawCalloc(cap * 2, sizeof(uint64_t))
        if fresh == NULL:
            raise MemoryError
        self.slots = fresh
        self.mask = cap * 2 - 1
        self.used = 0
        for i in range(cap):
            if old[i] != 0:
                self.add(old[i])
        PyMem_RawFree(old)
        return 0

    cdef Py_ssize_t discard(self, uint64_t seq) noexcept:
        """How many slots it looked at."""
        cdef Py_ssize_t looks = 1
        cdef size_t k = self.home(seq)
        cdef size_t hole
        while self.slots[k] != seq:
            if self.slots[k] == 0:
                return looks
            k = (k + 1) & self.mask
            looks += 1
        hole = k
        while True:
            k = (k + 1) & self.mask
            looks += 1
            if self.slots[k] == 0:
                break
            if ((k - self.home(self.slots[k])) & self.mask) >= ((k - hole) & self.mask):
                self.slots[hole] = self.slots[k]
                hole = k
        self.slots[hole] = 0
        self.used -= 1
        return looks

    cdef set as_set(self):
        cdef size_t i
        cdef set out = set()
        for i in range(self.mask + 1):
            if self.slots[i] != 0:
                out.add(self.slots[i])
        return out


cdef class _Sub:
    cdef bytes payload
    cdef uint64_t sent
    cdef SeqSet pending


cdef bint read_sub(const char* p, size_t n, uint64_t* sub_id) noexcept nogil:
    """The id of an encoded SubState or SubStateDelete; False if it does not decode."""
    cdef const char* end = p + n
    cdef int field = 0
    cdef int wire_type = 0
    cdef uint64_t v
    cdef Span ignored
    sub_id[0] = 0
    while p < end:
        p = get_tag(p, end, &field, &wire_type)
        if p == NULL:
            return False
        if field in (1, 6, 7, 9, 10, 11):
            p = get_varint(p, end, &v) if wire_type == 0 else NULL
            if field == 1:
                sub_id[0] = v
        elif field in (2, 3, 4, 5, 8):
            p = get_bytes(p, end, &ignored) if wire_type == 2 else NULL
        else:
            p = skip_field(p, end, wire_type)
        if p == NULL:
            return False
    return True


cdef bint read_update(const char* p, size_t n, uint64_t* sub_id, uint64_t* seq) noexcept nogil:
    """The fields of an encoded SubStateUpdate; False if it does not decode."""
    cdef const char* end = p + n
    cdef int field = 0
    cdef int wire_type = 0
    cdef uint64_t v = 0
    sub_id[0] = 0
    seq[0] = 0
    while p < end:
        p = get_tag(p, end, &field, &wire_type)
        if p == NULL:
            return False
        if field > 2:
            p = skip_field(p, end, wire_type)
        else:
            p = get_varint(p, end, &v) if wire_type == 0 else NULL
            if field == 1:
                sub_id[0] = v
            else:
                seq[0] = v
        if p == NULL:
            return False
    return True


cdef class SubReplay:
    """The state after the records of a ``subs.dat``, in one pass over its bytes and without an
    object for each record.

    ``highest`` is the highest subscription id ever seen, ``records`` the number of records taken,
    ``looks`` the slots looked at for them: what the work grows with.
    """

    cdef dict subs
    cdef Crc crc
    cdef bint check_crc
    cdef readonly uint64_t highest
    cdef readonly Py_ssize_t records
    cdef readonly Py_ssize_t looks

    def __init__(self, Crc crc not None, bint check_crc=True):
        self.subs = {}
        self.crc = crc
        self.check_crc = check_crc

    def feed(self, bytes data not None, Py_ssize_t start=0):
        """Take the records of ``data`` from ``start`` on: ``(end, why)``.

        ``end`` is the position behind the last good one, ``why`` what is there: ``""`` at the exact
        end of the data, ``"torn"``, ``"zeros"`` or ``"bad: ..."``. May be called again to go on
        behind a bad record.
        """
        cdef const char* p = PyBytes_AS_STRING(data)
        cdef size_t n = <size_t>len(data)
        cdef size_t pos = <size_t>start
        cdef uint32_t head
        cdef uint32_t size
        cdef uint32_t got
        cdef int kind
        cdef uint64_t sub_id = 0
        cdef uint64_t seq = 0
        cdef uint64_t cached_id = 0
        cdef _Sub cached = None
        cdef _Sub sub
        if start < 0 or pos > n:
            raise IndexError(start)
        while pos < n:
            if n - pos < 8:
                return pos, "torn"
            head = get32(p + pos)
            kind = <int>(head >> 24)
            size = head & 0xFFFFFF
            if head == 0 and get32(p + pos + 4) == 0:
                return pos, "zeros" if only_zeros(p + pos, n - pos) else "bad: empty record"
            if size > n - pos - 8:
                return pos, "torn"
            if self.check_crc:
                got = self.crc.of(p + pos + 8, size)
                if got != get32(p + pos + 4):
                    return pos, (
                        "bad: corrupted data, expected crc to be "
                        f"0x{get32(p + pos + 4):08x}, got 0x{got:08x}"
                    )
            if kind == 4 or kind == 5:
                if not read_update(p + pos + 8, size, &sub_id, &seq):
                    return pos, "bad: undecodable SubStateUpdate"
                if cached is not None and cached_id == sub_id:
                    sub = cached
                else:
                    sub = <_Sub>self.subs.get(sub_id)
                    cached = sub
                    cached_id = sub_id
                if sub is not None and seq != 0:
                    if kind == 4:
                        self.looks += sub.pending.discard(seq)
                    else:
                        self.looks += sub.pending.add(seq)
                        if seq > sub.sent:
                            sub.sent = seq
            elif 1 <= kind <= 3:
                if not read_sub(p + pos + 8, size, &sub_id):
                    return pos, "bad: undecodable SubState"
                cached = None
                if sub_id > self.highest:
                    self.highest = sub_id
                if kind == 3:
                    self.subs.pop(sub_id, None)
                else:
                    sub = _Sub()
                    sub.payload = PyBytes_FromStringAndSize(p + pos + 8, size)
                    known = self.subs.get(sub_id) if kind == 2 else None
                    sub.pending = SeqSet() if known is None else (<_Sub>known).pending
                    self.subs[sub_id] = sub
            else:
                return pos, f"bad: unexpected record type: {kind}"
            self.records += 1
            pos += 8 + size
        return pos, ""

    def result(self):
        """``[(SubState payload, highest sequence sent since that record, pending sequences),
        ...]``.
        """
        cdef _Sub sub
        return [(sub.payload, sub.sent, sub.pending.as_set()) for sub in self.subs.values()]
