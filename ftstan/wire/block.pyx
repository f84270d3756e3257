"""MsgBlock: messages of one channel in a row, encoded once; SubEvents: what happened to which
sequence of whom.

A block is the currency between broker, stores and deliveries. Its bytes are, per message, a gap of
eight bytes and the encoded message: a file store fills the gaps with record headers and writes the
block as it is, a reader gets blocks that are ranges of the file, and a delivery copies the same
bytes to the wire. A block is filled by one thread, then only read; it never shrinks and knows
nothing of files.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.string cimport memcpy, memset

from ftstan.wire.codec cimport Span, msg_proto_size, put_msg_proto

cpdef enum:
    #: Bytes before each message of a packed block.
    PACKED_HEAD = 20

cdef enum:
    #: Bytes of each event of packed events.
    PACKED_EVENT = 16


cdef class MsgBlock:
    """Messages of one channel, sequences ascending."""

    def __dealloc__(self):
        PyMem_RawFree(self.buf)
        PyMem_RawFree(self.refs)

    cdef int grow(self, size_t more) except -1:
        """Make room for ``more`` bytes behind ``used``."""
        cdef size_t need = self.used + more
        cdef size_t cap = self.cap
        cdef void* p
        if need <= cap:
            return 0
        if self.exports:
            raise BufferError("the block is being read")
        if cap == 0:
            cap = 1024
        while cap < need:
            cap *= 2
        p = PyMem_RawRealloc(self.buf, cap)
        if p == NULL:
            raise MemoryError
        self.buf = <char*>p
        self.cap = cap
        return 0

    cdef int put_bytes(self, const char* p, size_t n) except -1:
        """Append bytes as they are; without bytes there may be no buffer to copy to."""
        if n == 0:
            return 0
        self.grow(n)
        memcpy(self.buf + self.used, p, n)
        self.used += n
        return 0

    cdef MsgRef* add_ref(self, uint64_t seq, int64_t ts, size_t off, uint32_t size) except NULL:
        cdef Py_ssize_t cap
        cdef void* p
        cdef MsgRef* r
        if self.count == self.refcap:
            cap = 16 if self.refcap == 0 else self.refcap * 2
            p = PyMem_RawRealloc(self.refs, <size_t>cap * sizeof(MsgRef))
            if p == NULL:
                raise MemoryError
            self.refs = <MsgRef*>p
            self.refcap = cap
        r = &self.refs[self.count]
        r.seq = seq
        r.ts = ts
        r.off = off
        r.size = size
        self.count += 1
        return r

    cdef int put(self, uint64_t seq, Span subject, Span reply, Span data, int64_t ts) except -1:
        cdef size_t size = msg_proto_size(seq, subject.n, reply.n, data.n, ts)
        self.grow(GAP + size)
        self.add_ref(seq, ts, self.used, <uint32_t>size)
        memset(self.buf + self.used, 0, GAP)
        put_msg_proto(self.buf + self.used + GAP, seq, subject, reply, data, ts)
        self.used += GAP + size
        return 0

    cdef Py_ssize_t find(self, uint64_t seq) noexcept:
        """Index of the first message at or after ``seq``; ``count`` if there is none."""
        cdef Py_ssize_t lo = 0
        cdef Py_ssize_t hi = self.count
        cdef Py_ssize_t mid
        if hi == 0 or seq <= self.refs[0].seq:
            return 0
        # Nearly always the sequences are consecutive, and this is the place.
        if seq - self.refs[0].seq < <uint64_t>hi and self.refs[seq - self.refs[0].seq].seq == seq:
            return <Py_ssize_t>(seq - self.refs[0].seq)
        while lo < hi:
            mid = (lo + hi) // 2
            if self.refs[mid].seq < seq:
                lo = mid + 1
            else:
                hi = mid
        return lo

    def __len__(self):
        return self.count

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.buf, <Py_ssize_t>self.used, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self.exports -= 1

    @property
    def first(self):
        """Sequence of the first message, 0 in an empty block."""
        return self.refs[0].seq if self.count else 0

    @property
    def last(self):
        """Sequence of the last message, 0 in an empty block."""
        return self.refs[self.count - 1].seq if self.count else 0

    @property
    def nbytes(self):
        """Bytes of the block, gaps included."""
        return self.used

    def append(
        self,
        uint64_t sequence,
        bytes subject not None,
        bytes reply not None,
        bytes data not None,
        int64_t timestamp,
    ):
        """Encode one more message; ``timestamp`` in nanoseconds."""
        cdef Span s
        cdef Span r
        cdef Span d
        if self.count and sequence <= self.refs[self.count - 1].seq:
            raise ValueError("sequences of a block must ascend")
        s.p = PyBytes_AS_STRING(subject)
        s.n = <size_t>len(subject)
        r.p = PyBytes_AS_STRING(reply)
        r.n = <size_t>len(reply)
        d.p = PyBytes_AS_STRING(data)
        d.n = <size_t>len(data)
        self.put(sequence, s, r, d, timestamp)

    cdef MsgRef* at(self, Py_ssize_t i) except NULL:
        if i < 0 or i >= self.count:
            raise IndexError(i)
        return &self.refs[i]

    def extend(self, MsgBlock other not None):
        """Append the messages of another block, whose sequences are higher."""
        cdef Py_ssize_t i
        cdef size_t base = self.used
        if self.count and other.count and other.refs[0].seq <= self.refs[self.count - 1].seq:
            raise ValueError("sequences of a block must ascend")
        self.put_bytes(other.buf, other.used)
        for i in range(other.count):
            self.add_ref(
                other.refs[i].seq, other.refs[i].ts, base + other.refs[i].off, other.refs[i].size
            )

    def sizes(self, Py_ssize_t i, Py_ssize_t j):
        """Bytes of the encoded messages ``i`` to ``j - 1``."""
        cdef size_t total = 0
        cdef Py_ssize_t k
        if not 0 <= i <= j <= self.count:
            raise IndexError((i, j))
        for k in range(i, j):
            total += self.refs[k].size
        return total

    def sequence(self, Py_ssize_t i):
        """Sequence of message ``i``."""
        return self.at(i).seq

    def timestamp(self, Py_ssize_t i):
        """Timestamp (ns) of message ``i``."""
        return self.at(i).ts

    def payload(self, Py_ssize_t i):
        """The encoded MsgProto of message ``i``."""
        cdef MsgRef* r = self.at(i)
        return PyBytes_FromStringAndSize(self.buf + r.off + GAP, <Py_ssize_t>r.size)

    def position(self, uint64_t sequence):
        """Index of the first message at or after ``sequence``; ``len(self)`` if there is none."""
        return self.find(sequence)

    def pack(self):
        """The whole block as bytes of its own, for ``unpack_block``: per message its sequence, its
        timestamp and its size (8, 8 and 4 bytes, as this machine orders them), and the message.
        """
        cdef Py_ssize_t i
        cdef size_t total = 0
        cdef bytes out
        cdef char* p
        cdef MsgRef* r
        for i in range(self.count):
            total += PACKED_HEAD + self.refs[i].size
        out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
        p = PyBytes_AS_STRING(out)
        for i in range(self.count):
            r = &self.refs[i]
            memcpy(p, &r.seq, 8)
            memcpy(p + 8, &r.ts, 8)
            memcpy(p + 16, &r.size, 4)
            memcpy(p + PACKED_HEAD, self.buf + r.off + GAP, r.size)
            p += PACKED_HEAD + r.size
        return out


def unpack_block(bytes data not None):
    """The block of which ``data`` was packed. Raises ``ValueError`` for anything else."""
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef size_t left = <size_t>len(data)
    cdef uint64_t seq
    cdef uint64_t last = 0
    cdef int64_t ts
    cdef uint32_t size
    cdef MsgBlock block = MsgBlock()
    while left:
        if left < PACKED_HEAD:
            raise ValueError("a packed block ends within a message")
        memcpy(&seq, p, 8)
        memcpy(&ts, p + 8, 8)
        memcpy(&size, p + 16, 4)
        if size > left - PACKED_HEAD:
            raise ValueError("a packed block ends within a message")
        if seq <= last:
            raise ValueError("sequences of a block must ascend")
        last = seq
        block.grow(GAP + size)
        block.add_ref(seq, ts, block.used, size)
        memset(block.buf + block.used, 0, GAP)
        memcpy(block.buf + block.used + GAP, p + PACKED_HEAD, size)
        block.used += GAP + size
        p += PACKED_HEAD + size
        left -= PACKED_HEAD + size
    return block


cdef class SubEvents:
    """Sent and acknowledged sequences of subscriptions, in the order in which they happened."""

    def __dealloc__(self):
        PyMem_RawFree(self.events)

    cdef int add(self, uint64_t sub_id, uint64_t seq, bint acked) except -1:
        cdef Py_ssize_t cap
        cdef void* p
        if self.count == self.cap:
            cap = 64 if self.cap == 0 else self.cap * 2
            p = PyMem_RawRealloc(self.events, <size_t>cap * sizeof(SubEvent))
            if p == NULL:
                raise MemoryError
            self.events = <SubEvent*>p
            self.cap = cap
        self.events[self.count].sub_id = sub_id
        self.events[self.count].seq = seq
        self.events[self.count].acked = acked
        self.count += 1
        return 0

    def __len__(self):
        return self.count

    def sent(self, uint64_t sub_id, uint64_t seq):
        """The sequence was sent to the subscription for the first time."""
        self.add(sub_id, seq, False)

    def acked(self, uint64_t sub_id, uint64_t seq):
        """The subscription no longer waits for an acknowledgement of the sequence."""
        self.add(sub_id, seq, True)

    def items(self):
        """``[("sent" | "acked", sub_id, sequence), ...]``."""
        cdef Py_ssize_t i
        return [
            ("acked" if self.events[i].acked else "sent", self.events[i].sub_id, self.events[i].seq)
            for i in range(self.count)
        ]

    def by_sub(self):
        """``{sub_id: [(acked, [sequences]), ...]}``: those of each subscription, in their order."""
        cdef Py_ssize_t i
        cdef SubEvent* event
        cdef dict found = {}
        cdef list runs = None
        cdef tuple run
        cdef uint64_t last = 0
        for i in range(self.count):
            event = &self.events[i]
            if runs is None or event.sub_id != last:
                last = event.sub_id
                runs = found.get(last)
                if runs is None:
                    runs = found[last] = []
            if runs:
                run = runs[len(runs) - 1]
                if (run[0] is True) == bool(event.acked):
                    (<list>run[1]).append(event.seq)
                    continue
            runs.append((bool(event.acked), [event.seq]))
        return found

    def count_acked(self):
        """How many of them are acknowledgements."""
        cdef Py_ssize_t i
        cdef Py_ssize_t n = 0
        for i in range(self.count):
            n += self.events[i].acked
        return n

    def clear(self):
        """Forget everything."""
        self.count = 0

    def take(self):
        """Everything, as events of their own; nothing is left here."""
        cdef SubEvents taken = SubEvents()
        taken.events, self.events = self.events, taken.events
        taken.count, self.count = self.count, taken.count
        taken.cap, self.cap = self.cap, taken.cap
        return taken

    def pack(self):
        """The events as bytes, for ``unpack_events``: per event twice the id of the subscription,
        and one more if it is an acknowledgement; and the sequence (8 bytes each, as this machine
        orders them).
        """
        cdef Py_ssize_t i
        cdef uint64_t head
        cdef bytes out = PyBytes_FromStringAndSize(NULL, self.count * PACKED_EVENT)
        cdef char* p = PyBytes_AS_STRING(out)
        for i in range(self.count):
            head = self.events[i].sub_id << 1 | (1 if self.events[i].acked else 0)
            memcpy(p, &head, 8)
            memcpy(p + 8, &self.events[i].seq, 8)
            p += PACKED_EVENT
        return out


def unpack_events(bytes data not None):
    """The events of which ``data`` was packed. Raises ``ValueError`` for anything else."""
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef Py_ssize_t i
    cdef uint64_t head
    cdef uint64_t seq
    cdef SubEvents events = SubEvents()
    if len(data) % PACKED_EVENT:
        raise ValueError("packed events end within an event")
    for i in range(len(data) // PACKED_EVENT):
        memcpy(&head, p, 8)
        memcpy(&seq, p + 8, 8)
        events.add(head >> 1, seq, head & 1)
        p += PACKED_EVENT
    return events
