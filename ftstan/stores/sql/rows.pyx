"""Messages as rows: blocks as one COPY stream or one multi-row statement, and rows as blocks."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memset

from ftstan.wire.block cimport GAP, MsgBlock, MsgRef

cdef bytes _COPY_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
cdef bytes _INSERT = b"INSERT INTO Messages (id,seq,timestamp,size,data) VALUES "
# Five numbers and what stands between them.
cdef enum:
    COPY_ROW = 2 + 4 + 4 + 4 + 8 + 4 + 8 + 4 + 4 + 4
    VALUES_ROW = 96


cdef inline char* put32(char* p, uint32_t v) noexcept:
    p[0] = <char>(v >> 24)
    p[1] = <char>(v >> 16)
    p[2] = <char>(v >> 8)
    p[3] = <char>v
    return p + 4


cdef inline char* put64(char* p, uint64_t v) noexcept:
    return put32(put32(p, <uint32_t>(v >> 32)), <uint32_t>v)


def copy_stream(list blocks):
    """The rows of ``[(channel number, block)]`` as PostgreSQL's binary COPY format, whole."""
    cdef size_t need = <size_t>len(_COPY_HEAD) + 2
    cdef MsgBlock block
    cdef MsgRef* r
    cdef Py_ssize_t i
    cdef uint32_t number
    cdef bytes out
    cdef char* p
    for _, block in blocks:
        need += block.used + <size_t>block.count * COPY_ROW
    out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>need)
    p = PyBytes_AS_STRING(out)
    cdef char* start = p
    memcpy(p, PyBytes_AS_STRING(_COPY_HEAD), <size_t>len(_COPY_HEAD))
    p += len(_COPY_HEAD)
    for number, block in blocks:
        for i in range(block.count):
            r = &block.refs[i]
            if r.seq >> 63:
                raise OverflowError("sequence")
            p[0] = 0
            p[1] = 5
            p = put32(put32(p + 2, 4), number)
            p = put64(put32(p, 8), r.seq)
            p = put64(put32(p, 8), <uint64_t>r.ts)
            p = put32(put32(p, 4), r.size)
            p = put32(p, r.size)
            memcpy(p, block.buf + r.off + GAP, r.size)
            p += r.size
    p[0] = <char>0xFF
    p[1] = <char>0xFF
    p += 2
    return out[:p - start]


cdef Py_ssize_t escaped(char* out, const char* p, size_t n) noexcept:
    """Copy bytes as they stand in a quoted string; returns how many there are then."""
    cdef size_t i
    cdef char* at = out
    cdef char c
    for i in range(n):
        c = p[i]
        if c == 0:
            at[0] = b"\\"
            at[1] = b"0"
            at += 2
        elif c == b"'" or c == b"\\":
            at[0] = b"\\"
            at[1] = c
            at += 2
        else:
            at[0] = c
            at += 1
    return at - out


def insert_statements(list blocks, size_t most):
    """The rows of ``[(channel number, block)]`` as statements of at most ``most`` bytes.

    A row that is larger is a statement of its own.
    """
    cdef list statements = []
    cdef MsgBlock block
    cdef MsgRef* r
    cdef Py_ssize_t i
    cdef unsigned long number
    cdef size_t head = <size_t>len(_INSERT)
    cdef size_t cap = 0
    cdef size_t used = 0
    cdef size_t row
    cdef bytearray out
    cdef char* p
    for _, block in blocks:
        for i in range(block.count):
            row = VALUES_ROW + 2 * <size_t>block.refs[i].size
            cap += row
    if cap > most + head:
        cap = most + head
    out = bytearray(<Py_ssize_t>(cap + head))
    for number, block in blocks:
        for i in range(block.count):
            r = &block.refs[i]
            row = VALUES_ROW + 2 * <size_t>r.size
            if used > head and used + row > most:
                statements.append(bytes(memoryview(out)[:used - 1]))
                used = 0
            if used + head + row > <size_t>len(out):
                out.extend(bytes(<Py_ssize_t>(used + head + row) - len(out)))
            p = <char*>out
            if used == 0:
                memcpy(p, PyBytes_AS_STRING(_INSERT), head)
                used = head
            used += <size_t>snprintf(
                p + used, VALUES_ROW, b"(%lu,%llu,%lld,%u,_binary'",
                number, <unsigned long long>r.seq, <long long>r.ts, <unsigned int>r.size,
            )
            used += <size_t>escaped(p + used, block.buf + r.off + GAP, r.size)
            memcpy(p + used, b"'),", 3)
            used += 3
    if used > head:
        statements.append(bytes(memoryview(out)[:used - 1]))
    return statements


def block_of(list rows):
    """A block of rows ``(sequence, timestamp, encoded message)``, sequences ascending."""
    cdef MsgBlock block = MsgBlock()
    cdef uint64_t sequence
    cdef int64_t timestamp
    cdef bytes data
    cdef size_t n
    for sequence, timestamp, data in rows:
        n = <size_t>PyBytes_GET_SIZE(data)
        block.grow(GAP + n)
        block.add_ref(sequence, timestamp, block.used, <uint32_t>n)
        memset(block.buf + block.used, 0, GAP)
        memcpy(block.buf + block.used + GAP, PyBytes_AS_STRING(data), n)
        block.used += GAP + n
    return block


def row_lists(MsgBlock block):
    """Sequences, timestamps, sizes and encoded messages of a block, as four lists."""
    cdef list sequences = []
    cdef list timestamps = []
    cdef list sizes = []
    cdef list datas = []
    cdef MsgRef* r
    cdef Py_ssize_t i
    for i in range(block.count):
        r = &block.refs[i]
        sequences.append(r.seq)
        timestamps.append(r.ts)
        sizes.append(r.size)
        datas.append(PyBytes_FromStringAndSize(block.buf + r.off + GAP, <Py_ssize_t>r.size))
    return sequences, timestamps, sizes, datas
