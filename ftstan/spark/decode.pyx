"""From bytes of slices to Arrow: columns of the messages that index entries name, one call for
thousands of them.

Records and entries are read by the very code that the server uses (``stores/file/records``). Pure
computation on buffers, which it never reads past: no file, no clock. Whatever the bytes are, a
message that an entry names becomes a row: where it cannot be read, the row says so.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

import pyarrow as pa

from ftstan.base.errors import StoreError
from ftstan.stores.file.log.crc cimport Crc as Checksum, get32, get64
from ftstan.stores.file.log.records cimport ENTRY, Stored, holds, read_message

#: Columns that only the data of a message can fill; the others stand in its index entry.
FROM_DATA = frozenset({"data", "size", "reply", "crc_ok", "problem"})

#: Type of each column that can be asked for. The last three say where a row comes from; they are
#: not in the schema of a reader unless it is asked for them.
TYPES = {
    "channel": pa.string(),
    "sequence": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ns": pa.int64(),
    "data": pa.binary(),
    "size": pa.int32(),
    "reply": pa.string(),
    "crc_ok": pa.bool_(),
    "slice": pa.int32(),
    "file": pa.string(),
    "offset": pa.int64(),
    "problem": pa.string(),
}

cdef enum:
    READ = 1         # the record was read, and is what was written
    TIMED = 2        # the timestamp is known
    SEALED = 29      # bytes that encryption adds to a payload
    DRIFT = 1048576  # how far a nonce's count may be from the sequence


cdef class Memory:
    """Bytes that grow until somebody looks at them: an Arrow buffer in the making."""

    cdef char* p
    cdef size_t used
    cdef size_t cap

    def __dealloc__(self):
        PyMem_RawFree(self.p)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        self.room(0)
        PyBuffer_FillInfo(buffer, self, self.p, <Py_ssize_t>self.used, 1, flags)

    cdef char* room(self, size_t more) except NULL:
        """Where ``more`` bytes may be written; ``used`` is the caller's to raise."""
        cdef size_t cap = self.cap
        cdef void* p
        if self.p == NULL or self.used + more > cap:
            if cap < 4096:
                cap = 4096
            while cap < self.used + more:
                cap *= 2
            p = PyMem_RawRealloc(self.p, cap)
            if p == NULL:
                raise MemoryError
            self.p = <char*>p
            self.cap = cap
        return self.p + self.used


cdef inline int64_t micros(int64_t ns) noexcept:
    """Whole microseconds at or before a time, before 1970 too."""
    cdef int64_t us = ns / 1000
    return us - 1 if ns % 1000 < 0 else us


cdef inline bint looks_encrypted(const char* p, size_t n, uint64_t sequence) noexcept:
    """Whether a payload has the shape of an encrypted one: a cipher's number, then a nonce that
    counts like sequences, as an original's, or bytes that look random, as ours.
    """
    cdef uint64_t count = 0
    cdef size_t i
    if n < SEALED or (p[0] != 1 and p[0] != 2):
        return False
    for i in range(5, 13):
        count = count << 8 | <uint8_t>p[i]
    if 0 < count <= sequence + DRIFT and (sequence <= DRIFT or count >= sequence - DRIFT):
        return True
    return looks_random(p + 1, SEALED - 1)


cdef inline bint looks_random(const char* p, size_t n) noexcept:
    """Whether few of some bytes are alike, and neither few nor most are above 127: of 28 random
    ones, all but one series in 50,000.
    """
    cdef uint64_t[4] seen
    cdef size_t i
    cdef size_t high = 0
    cdef size_t distinct = 0
    cdef uint8_t byte
    seen[0] = seen[1] = seen[2] = seen[3] = 0
    for i in range(n):
        byte = <uint8_t>p[i]
        high += byte >> 7
        if not seen[byte >> 6] >> (byte & 63) & 1:
            distinct += 1
            seen[byte >> 6] |= <uint64_t>1 << (byte & 63)
    return distinct * 4 >= n * 3 and high * 7 >= n and high * 7 <= n * 6


def select(
    const unsigned char[::1] index not None,
    uint64_t first,
    uint64_t last,
    int64_t since,
    int64_t until,
):
    """Runs ``[(i, j), ...]`` of entries with a sequence from ``first`` to ``last`` and a timestamp
    from ``since`` to ``until``.

    Both ends count. Looks at every entry: timestamps may step back.
    """
    cdef Py_ssize_t n = index.shape[0] // ENTRY
    cdef Py_ssize_t start = -1
    cdef Py_ssize_t k
    cdef const char* e
    cdef list runs = []
    for k in range(n):
        e = <const char*>&index[k * ENTRY]
        if first <= get64(e) <= last and since <= <int64_t>get64(e + 16) <= until:
            if start < 0:
                start = k
        elif start >= 0:
            runs.append((start, k))
            start = -1
    if start >= 0:
        runs.append((start, n))
    return runs


def beginning(const unsigned char[::1] index not None, uint64_t offset):
    """How many entries of a chain have a record that begins before ``offset``."""
    cdef Py_ssize_t lo = 0
    cdef Py_ssize_t hi = index.shape[0] // ENTRY
    cdef Py_ssize_t mid
    while lo < hi:
        mid = (lo + hi) // 2
        if get64(<const char*>&index[mid * ENTRY + 8]) < offset:
            lo = mid + 1
        else:
            hi = mid
    return lo


def ending(const unsigned char[::1] index not None, uint64_t offset):
    """How many entries of a chain have a record that ends at or before ``offset``."""
    cdef Py_ssize_t n = beginning(index, offset)
    cdef const char* e
    if n:
        e = <const char*>&index[(n - 1) * ENTRY]
        # Only the last one that begins before it can end behind it.
        if offset - get64(e + 8) < <uint64_t>8 + get32(e + 24):
            n -= 1
    return n


def gaps(const unsigned char[::1] index not None, uint64_t after):
    """Sequences ``[(first, last), ...]`` that ascending entries leave out, from behind ``after``
    on; 0: from the first.
    """
    cdef Py_ssize_t n = index.shape[0] // ENTRY
    cdef Py_ssize_t k
    cdef uint64_t seq
    cdef list found = []
    for k in range(n):
        seq = get64(<const char*>&index[k * ENTRY])
        if after and seq > after + 1:
            found.append((after + 1, seq - 1))
        after = seq
    return found


cdef class Builder:
    """Collects rows of ``columns`` (names of ``TYPES``) until ``finish`` makes a batch of them."""

    cdef Checksum crc
    cdef tuple columns
    cdef bint want_sequence, want_timestamp, want_ns, want_data, want_size, want_reply, want_offset
    cdef Memory sequences, stamps, nanos, offsets, sizes, flags, data, data_ends, reply, reply_ends
    cdef list runs
    cdef dict problems
    cdef bytes channel
    cdef object shown
    cdef object decrypt
    cdef int64_t number
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t encrypted
    cdef readonly uint64_t undecryptable
    cdef bint flawed

    def __init__(self, tuple columns not None, Checksum crc not None):
        for name in columns:
            if name not in TYPES:
                raise ValueError(name)
        self.columns = columns
        self.crc = crc
        self.want_sequence = "sequence" in columns
        self.want_timestamp = "timestamp" in columns
        self.want_ns = "timestamp_ns" in columns
        self.want_data = "data" in columns
        self.want_size = "size" in columns
        self.want_reply = "reply" in columns
        self.want_offset = "offset" in columns
        self.channel = b""
        self.shown = ""
        self.decrypt = None
        self._clear()

    cdef _clear(self):
        self.sequences = Memory()
        self.stamps = Memory()
        self.nanos = Memory()
        self.offsets = Memory()
        self.sizes = Memory()
        self.flags = Memory()
        self.data = Memory()
        self.data_ends = Memory()
        self.reply = Memory()
        self.reply_ends = Memory()
        self.runs = []
        self.problems = {}
        self.rows = 0
        self.flawed = False

    @property
    def nbytes(self):
        """Bytes of payloads and replies collected so far."""
        return self.data.used + self.reply.used

    def begin(self, bytes channel not None, str shown not None, int64_t number, decrypt=None):
        """What follows is from slice ``number`` of ``channel``, which the column of that name shows
        as ``shown``.

        ``decrypt(stored)`` gives the payload of one that is, or may be, encrypted; without it
        payloads are given as they are stored.
        """
        self.channel = channel
        self.shown = shown
        self.decrypt = decrypt
        self.number = number

    def add(self, const unsigned char[::1] index not None, Py_ssize_t i, Py_ssize_t j,
            const unsigned char[::1] data=None, uint64_t base=0):
        """Rows for entries ``i`` to ``j - 1``; ``data``: the bytes of the slice from offset
        ``base`` on.

        Without ``data`` only what entries say is known. Returns ``[(sequence, offset, what is
        wrong), ...]`` of the rows whose record cannot be read. Raises what ``decrypt`` raises, with
        ``undecryptable`` set to the sequence: nothing that was collected can be used then.
        """
        cdef const char* p = NULL
        cdef size_t n = 0
        cdef const char* e
        cdef Py_ssize_t k
        cdef uint64_t seq, off
        cdef int64_t ts
        cdef uint32_t size, got
        cdef size_t at
        cdef Stored m
        cdef str why
        cdef list bad = []
        cdef bint read = data is not None
        cdef bint opening = self.decrypt is not None and (self.want_data or self.want_size)
        cdef bytes plain
        if not 0 <= i <= j <= index.shape[0] // ENTRY:
            raise IndexError((i, j))
        if i == j:
            return bad
        if read:
            n = <size_t>data.shape[0]
            p = <const char*>&data[0] if n else NULL
        self._reserve(j - i)
        for k in range(i, j):
            e = <const char*>&index[k * ENTRY]
            seq = get64(e)
            off = get64(e + 8)
            ts = <int64_t>get64(e + 16)
            size = get32(e + 24)
            if not read:
                self._put(seq, ts, off, NULL, READ | TIMED)
                continue
            why = ""
            if not holds(n, base, off, size):
                why = "unexpected EOF"
            else:
                at = <size_t>(off - base)
                # A wrong size in the header does no harm while the index knows the right one: the
                # checksum tells.
                got = self.crc.of(p + at + 8, size)
                if got != get32(p + at + 4):
                    why = (
                        "corrupted data, expected crc to be "
                        f"0x{get32(p + at + 4):08x}, got 0x{got:08x}"
                    )
                elif not read_message(p + at + 8, size, &m):
                    why = "message does not decode"
                elif m.seq != seq:
                    why = f"the record holds sequence {m.seq}"
                elif m.subject.n != <size_t>len(self.channel) or memcmp(
                    m.subject.p, PyBytes_AS_STRING(self.channel), m.subject.n
                ) != 0:
                    why = "record of another channel"
            if why:
                bad.append((seq, off, why))
                self.problems[self.rows] = why
                self._put(seq, ts, off, NULL, TIMED)
            else:
                if opening and m.data.n and (m.data.p[0] == 1 or m.data.p[0] == 2):
                    try:
                        plain = self.decrypt(m.data.p[:m.data.n])
                    except StoreError:
                        self.undecryptable = seq
                        raise
                    m.data.p = PyBytes_AS_STRING(plain)
                    m.data.n = <size_t>len(plain)
                self._put(seq, ts, off, &m, READ | TIMED)
        self._run(j - i)
        return bad

    def lost(self, uint64_t sequence, uint64_t offset, str why not None, timestamp=None):
        """A row for bytes at ``offset`` that are no record, where ``sequence`` was expected;
        ``timestamp`` if it is known.
        """
        self._reserve(1)
        self.problems[self.rows] = why
        self._put(
            sequence,
            0 if timestamp is None else timestamp,
            offset,
            NULL,
            0 if timestamp is None else TIMED,
        )
        self._run(1)

    cdef _run(self, Py_ssize_t rows):
        self.runs.append((self.shown, self.number, rows))

    cdef int _reserve(self, Py_ssize_t rows) except -1:
        cdef size_t wide = <size_t>rows * 8
        self.flags.room(<size_t>rows)
        if self.want_sequence:
            self.sequences.room(wide)
        if self.want_timestamp:
            self.stamps.room(wide)
        if self.want_ns:
            self.nanos.room(wide)
        if self.want_offset:
            self.offsets.room(wide)
        if self.want_size:
            self.sizes.room(wide)
        if self.want_data:
            self.data_ends.room(wide)
        if self.want_reply:
            self.reply_ends.room(wide)
        return 0

    cdef inline int _put(
        self, uint64_t seq, int64_t ts, uint64_t off, const Stored* m, uint8_t flags
    ) except -1:
        """One row, for which there is room; ``m``: its message, if that was read."""
        self.flags.p[self.flags.used] = <char>flags
        self.flags.used += 1
        if flags != READ | TIMED:
            self.flawed = True
        if self.want_sequence:
            (<int64_t*>(self.sequences.p + self.sequences.used))[0] = <int64_t>seq
            self.sequences.used += 8
        if self.want_timestamp:
            (<int64_t*>(self.stamps.p + self.stamps.used))[0] = micros(ts)
            self.stamps.used += 8
        if self.want_ns:
            (<int64_t*>(self.nanos.p + self.nanos.used))[0] = ts
            self.nanos.used += 8
        if self.want_offset:
            (<int64_t*>(self.offsets.p + self.offsets.used))[0] = <int64_t>off
            self.offsets.used += 8
        if self.want_size:
            (<int32_t*>(self.sizes.p + self.sizes.used))[0] = <int32_t>m.data.n if m != NULL else 0
            self.sizes.used += 4
        if self.want_data:
            if m != NULL:
                memcpy(self.data.room(m.data.n), m.data.p, m.data.n)
                self.data.used += m.data.n
            (<int32_t*>(self.data_ends.p + self.data_ends.used))[0] = <int32_t>self.data.used
            self.data_ends.used += 4
        if self.want_reply:
            if m != NULL:
                self._put_reply(m.reply.p, m.reply.n)
            (<int32_t*>(self.reply_ends.p + self.reply_ends.used))[0] = <int32_t>self.reply.used
            self.reply_ends.used += 4
        if m != NULL and self.decrypt is None and looks_encrypted(m.data.p, m.data.n, seq):
            self.encrypted += 1
        self.rows += 1
        return 0

    cdef int _put_reply(self, const char* p, size_t n) except -1:
        """Clients may put any bytes into a reply subject; a column of strings takes UTF-8 only."""
        cdef size_t i
        cdef bytes text
        for i in range(n):
            if <uint8_t>p[i] >= 0x80:
                text = p[:n].decode("utf-8", "backslashreplace").encode()
                memcpy(
                    self.reply.room(<size_t>len(text)), PyBytes_AS_STRING(text), <size_t>len(text)
                )
                self.reply.used += <size_t>len(text)
                return 0
        memcpy(self.reply.room(n), p, n)
        self.reply.used += n
        return 0

    def finish(self):
        """The rows as a ``pyarrow.RecordBatch``; the next ones begin a new one."""
        cdef dict made = {}
        for name in self.columns:
            made[name] = self._column(name)
        batch = pa.RecordBatch.from_arrays(
            [made[name] for name in self.columns],
            schema=pa.schema([(name, TYPES[name]) for name in self.columns]),
        )
        if not self.columns:
            # A count needs rows and no column.
            batch = pa.RecordBatch.from_struct_array(pa.array([{}] * self.rows, type=pa.struct([])))
        self._clear()
        return batch

    cdef _column(self, str name):
        cdef Py_ssize_t rows = self.rows
        kind = TYPES[name]
        if name == "channel":
            return self._repeated([(shown, n) for shown, _, n in self.runs])
        if name == "file":
            return self._repeated(
                [(f"{shown}/msgs.{number}.dat", n) for shown, number, n in self.runs]
            )
        if name == "slice":
            return self._slices()
        if name == "sequence":
            return fixed(kind, rows, self.sequences, None)
        if name == "timestamp":
            return fixed(kind, rows, self.stamps, self._bits(TIMED) if self.flawed else None)
        if name == "timestamp_ns":
            return fixed(kind, rows, self.nanos, self._bits(TIMED) if self.flawed else None)
        if name == "offset":
            return fixed(kind, rows, self.offsets, None)
        if name == "size":
            return fixed(kind, rows, self.sizes, self._bits(READ) if self.flawed else None)
        if name == "data":
            return varied(
                kind, rows, self.data_ends, self.data, self._bits(READ) if self.flawed else None
            )
        if name == "reply":
            return varied(
                kind, rows, self.reply_ends, self.reply, self._bits(READ) if self.flawed else None
            )
        if name == "crc_ok":
            return fixed(kind, rows, self._bits(READ), None)
        return pa.array([self.problems.get(k) for k in range(rows)], type=kind)

    cdef Memory _bits(self, uint8_t flag):
        """One bit a row: whether it has the flag."""
        cdef Memory out = Memory()
        cdef size_t n = (<size_t>self.rows + 7) // 8
        cdef char* p = out.room(n)
        cdef Py_ssize_t k
        memset(p, 0, n)
        for k in range(self.rows):
            if self.flags.p[k] & flag:
                p[k >> 3] |= <char>(1 << (k & 7))
        out.used = n
        return out

    cdef _repeated(self, list runs):
        """A column of strings, each so many times."""
        cdef Memory ends = Memory()
        cdef Memory out = Memory()
        cdef bytes text
        cdef Py_ssize_t k, rows
        cdef size_t size
        cdef char* p
        cdef int32_t* to
        for shown, rows in runs:
            text = shown.encode()
            size = <size_t>len(text)
            p = out.room(size * <size_t>rows)
            to = <int32_t*>ends.room(<size_t>rows * 4)
            for k in range(rows):
                memcpy(p, PyBytes_AS_STRING(text), size)
                p += size
                out.used += size
                to[k] = <int32_t>out.used
            ends.used += <size_t>rows * 4
        return varied(pa.string(), self.rows, ends, out, None)

    cdef _slices(self):
        """Numbers of slices; nothing where one does not fit into the column."""
        cdef Memory out = Memory()
        cdef Py_ssize_t k, rows
        cdef int64_t number
        cdef int32_t* to
        for _, number, rows in self.runs:
            if not 0 <= number <= 0x7FFFFFFF:
                numbers = (v for _, v, n in self.runs for _ in range(n))
                return pa.array(
                    [v if 0 <= v <= 0x7FFFFFFF else None for v in numbers], pa.int32()
                )
            to = <int32_t*>out.room(<size_t>rows * 4)
            for k in range(rows):
                to[k] = <int32_t>number
            out.used += <size_t>rows * 4
        return fixed(pa.int32(), self.rows, out, None)


cdef fixed(kind, Py_ssize_t rows, Memory values, Memory valid):
    """A column of numbers."""
    return pa.Array.from_buffers(
        kind, rows, [None if valid is None else pa.py_buffer(valid), pa.py_buffer(values)]
    )


cdef varied(kind, Py_ssize_t rows, Memory ends, Memory values, Memory valid):
    """A column of texts or bytes, ``ends`` of each within ``values``."""
    cdef Memory offsets = Memory()
    cdef char* p = offsets.room(ends.used + 4)
    memset(p, 0, 4)
    if ends.used:
        memcpy(p + 4, ends.p, ends.used)
    offsets.used = ends.used + 4
    known = None if valid is None else pa.py_buffer(valid)
    buffers = [known, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, rows, buffers)
