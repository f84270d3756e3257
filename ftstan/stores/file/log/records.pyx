"""The bytes of the file store: record framing and index entries (``docs/compat/filestore.md``).

The one place that knows the format; everything that reads or writes slices and state files goes
through here. The checksum is in ``crc.pyx``, what the records of a ``subs.dat`` add up to in
``subreplay.pyx``. Pure computation on buffers: no file, no clock.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from ftstan.stores.file.log.crc cimport (
    Crc as Checksum,
    Sums as Summed,
    get32,
    get64,
    only_zeros,
    put32,
    put64,
)
from ftstan.wire.block cimport GAP, MsgBlock, MsgRef, SubEvents
from ftstan.wire.codec cimport Span, get_bytes, get_tag, get_varint, put_varint, skip_field

from ftstan.stores.file.log.crc import Crc, Sums

#: The four bytes that start every file.
VERSION = b"\x01\x00\x00\x00"

#: Bytes of the version, of a record's header, of an index entry.
VERSION_SIZE = 4
HEADER_SIZE = 8
INDEX_SIZE = 32

#: Record types of ``clients.dat``.
CLIENT_ADD = 1
CLIENT_DELETE = 2

#: Record types of ``subs.dat``.
SUB_NEW = 1
SUB_UPDATE = 2
SUB_DELETE = 3
SUB_ACK = 4
SUB_MSG = 5

#: Largest payload of a typed record.
MAX_TYPED = 0xFFFFFF

def seal(MsgBlock block not None, Checksum crc not None):
    """Put the record header (size, CRC) into the gap before each message: the block is then a piece
    of a ``.dat``.
    """
    cdef Py_ssize_t i
    cdef char* p
    for i in range(block.count):
        p = block.buf + block.refs[i].off
        put32(p, block.refs[i].size)
        put32(p + 4, crc.of(p + GAP, block.refs[i].size))


def span(MsgBlock block not None, Py_ssize_t i, Py_ssize_t j):
    """``(start, end)``: where the records of messages ``i`` to ``j - 1`` lie in a sealed block."""
    if not 0 <= i < j <= block.count:
        raise IndexError((i, j))
    return block.refs[i].off, block.refs[j - 1].off + GAP + block.refs[j - 1].size


def fitting(MsgBlock block not None, Py_ssize_t i, int64_t max_count, int64_t max_bytes):
    """How many messages from ``i`` on fill a slice to its limits: the last one may exceed them; 0 =
    no limit.

    ``max_bytes`` counts ``payload + 40`` a message. At least one.
    """
    cdef int64_t total = 0
    cdef Py_ssize_t j = i
    while j < block.count:
        total += block.refs[j].size + 40
        j += 1
        if (max_count > 0 and j - i >= max_count) or (max_bytes > 0 and total >= max_bytes):
            break
    return j - i


cdef inline void put_entry(char* p, const MsgRef* r, uint64_t offset, Checksum crc) noexcept:
    put64(p, r.seq)
    put64(p + 8, offset)
    put64(p + 16, <uint64_t>r.ts)
    put32(p + 24, r.size)
    put32(p + 28, crc.of(p, 28))


def index_entries(
    MsgBlock block not None, Py_ssize_t i, Py_ssize_t j, uint64_t offset, Checksum crc not None
):
    """Index entries of messages ``i`` to ``j - 1``, the first of which starts at ``offset`` of its
    ``.dat``.
    """
    cdef bytes out = PyBytes_FromStringAndSize(NULL, (j - i) * ENTRY)
    cdef char* p = PyBytes_AS_STRING(out)
    cdef size_t base
    cdef Py_ssize_t k
    if not 0 <= i <= j <= block.count:
        raise IndexError((i, j))
    base = block.refs[i].off if i < j else 0
    for k in range(i, j):
        put_entry(p, &block.refs[k], offset + block.refs[k].off - base, crc)
        p += ENTRY
    return out


cdef class IndexScan:
    """What the entries of an index file prove: a chain that starts at offset 4 and whose CRCs are
    right.

    ``count`` entries, sequences ``first`` .. ``last`` (``contiguous`` if they ascend by one),
    timestamps of the first and the last, ``end``: the offset in the ``.dat`` behind the last
    record. ``clean`` is false when something follows that does not belong to the chain.
    """

    cdef readonly Py_ssize_t count
    cdef readonly uint64_t first
    cdef readonly uint64_t last
    cdef readonly int64_t first_ts
    cdef readonly int64_t last_ts
    cdef readonly uint64_t end
    cdef readonly bint contiguous
    cdef readonly bint clean


def scan_index(
    bytes data not None,
    Checksum crc not None,
    bint check_crc=True,
    uint64_t end=4,
    uint64_t after=0,
):
    """Read the entries of an index file without its version (``data``): an ``IndexScan``.

    For a piece of it, ``end`` and ``after`` are what the scan of the piece before found as ``end``
    and ``last``.
    """
    cdef IndexScan s = IndexScan()
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef Py_ssize_t total = len(data) // ENTRY
    cdef Py_ssize_t k
    cdef uint64_t seq
    s.end = end
    s.contiguous = True
    s.clean = len(data) % ENTRY == 0
    with nogil:
        for k in range(total):
            seq = get64(p)
            if (
                (check_crc and get32(p + 28) != crc.of(p, 28))
                or get64(p + 8) != s.end
                or seq == 0
                or seq <= (s.last if k > 0 else after)
            ):
                s.clean = False
                break
            if k == 0:
                s.first = seq
                s.first_ts = <int64_t>get64(p + 16)
            elif seq != s.last + 1:
                s.contiguous = False
            s.last = seq
            s.last_ts = <int64_t>get64(p + 16)
            s.end += <uint64_t>8 + get32(p + 24)
            s.count += 1
            p += ENTRY
    return s


def entry(const unsigned char[::1] index not None, Py_ssize_t k):
    """``(sequence, offset, timestamp, size)`` of entry ``k``."""
    cdef const char* p
    if not 0 <= k < index.shape[0] // ENTRY:
        raise IndexError(k)
    p = <const char*>&index[k * ENTRY]
    return get64(p), get64(p + 8), <int64_t>get64(p + 16), get32(p + 24)


def find_entry(const unsigned char[::1] index not None, sequence):
    """Number of the first entry at or after ``sequence``, which may lie behind the last that an
    entry can have.
    """
    cdef Py_ssize_t lo = 0
    cdef Py_ssize_t hi = index.shape[0] // ENTRY
    cdef Py_ssize_t mid
    if sequence > 0xFFFFFFFFFFFFFFFF:
        return hi
    cdef uint64_t wanted = sequence
    while lo < hi:
        mid = (lo + hi) // 2
        if get64(<const char*>&index[mid * ENTRY]) < wanted:
            lo = mid + 1
        else:
            hi = mid
    return lo


def first_younger(const unsigned char[::1] index not None, int64_t timestamp):
    """Number of the first entry whose timestamp is at or after ``timestamp``, looking from the
    front.
    """
    cdef Py_ssize_t n = index.shape[0] // ENTRY
    cdef Py_ssize_t k
    for k in range(n):
        if <int64_t>get64(<const char*>&index[k * ENTRY + 16]) >= timestamp:
            return k
    return n


def sound_entries(const unsigned char[::1] index not None, uint64_t first, bint contiguous):
    """Whether entries begin at sequence ``first`` or behind it, ascend, have times, and name
    records in their order.

    ``contiguous``: every sequence from ``first`` on has its entry, and the records lie in one
    piece.
    """
    cdef Py_ssize_t n = index.shape[0] // ENTRY
    cdef Py_ssize_t k
    cdef const char* p
    cdef uint64_t seq = first
    cdef uint64_t at = 0
    for k in range(n):
        p = <const char*>&index[k * ENTRY]
        if get64(p) < seq or get64(p + 8) < at or not get64(p + 16):
            return False
        if contiguous and (get64(p) != seq or (k > 0 and get64(p + 8) != at)):
            return False
        seq = get64(p) + 1
        at = get64(p + 8) + 8 + get32(p + 24)
    return True


def fitting_entries(const unsigned char[::1] index not None, uint64_t max_bytes):
    """How many entries' records fit in ``max_bytes``; at least one if there is any."""
    cdef Py_ssize_t n = index.shape[0] // ENTRY
    cdef Py_ssize_t k = 0
    cdef uint64_t total = 0
    while k < n:
        total += <uint64_t>8 + get32(<const char*>&index[k * ENTRY + 24])
        if k > 0 and total > max_bytes:
            break
        k += 1
    return k


cdef bint read_message(const char* p, size_t n, Stored* out) noexcept nogil:
    """The fields of an encoded message; False if it does not decode."""
    cdef const char* end = p + n
    cdef int field = 0
    cdef int wire_type = 0
    cdef uint64_t v
    out.seq = 0
    out.ts = 0
    out.subject.p = out.reply.p = out.data.p = p
    out.subject.n = out.reply.n = out.data.n = 0
    while p < end:
        p = get_tag(p, end, &field, &wire_type)
        if p == NULL:
            return False
        if wire_type == 0 and (field == 1 or field == 5):
            p = get_varint(p, end, &v)
            if field == 1:
                out.seq = v
            else:
                out.ts = <int64_t>v
        elif field == 1 or field == 5:
            return False
        elif 2 <= field <= 4:
            if wire_type != 2:
                return False
            p = get_bytes(
                p, end, &out.subject if field == 2 else &out.reply if field == 3 else &out.data
            )
        else:
            p = skip_field(p, end, wire_type)
        if p == NULL:
            return False
    return True


def scan_data(
    bytes data not None,
    bytes channel not None,
    uint64_t after,
    Checksum crc not None,
    bint check_crc=True,
    Py_ssize_t start=0,
    Summed sums=None,
):
    """Records of ``data`` (a ``.dat`` from some offset on) from ``start`` on: ``(block, end,
    why)``.

    ``block`` holds every whole record up to the first that is not one of ``channel`` with a
    sequence above its predecessor's (the first one's: above ``after``); ``end`` is the position
    behind the last; ``why`` is ``""`` at the exact end of the data, else ``"torn"`` (cut off by the
    end), ``"zeros"`` (nothing but zeros from there on) or ``"bad: ..."``. An empty ``channel``
    takes records of any. ``sums``: those of ``data``, of a caller that goes on behind bad records.
    """
    cdef MsgBlock block = MsgBlock()
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef size_t n = <size_t>len(data)
    cdef size_t begin = <size_t>min(max(start, 0), len(data))
    cdef size_t pos = begin
    cdef uint32_t size
    cdef uint64_t last = after
    cdef Stored m
    cdef uint32_t got
    cdef str why = ""
    if sums is not None:
        sums = sums_of(data, crc, sums)
    while pos < n:
        if n - pos < 8:
            why = "torn"
            break
        size = get32(p + pos)
        if size == 0 and get32(p + pos + 4) == 0:
            why = "zeros" if only_zeros(p + pos, n - pos) else "bad: empty record"
            break
        if size > n - pos - 8:
            why = "torn"
            break
        if check_crc:
            got = crc.of(p + pos + 8, size) if sums is None else sums.of(p + pos + 8, size)
            if got != get32(p + pos + 4):
                why = (
                    "bad: corrupted data, expected crc to be "
                    f"0x{get32(p + pos + 4):08x}, got 0x{got:08x}"
                )
                break
        if not read_message(p + pos + 8, size, &m):
            why = "bad: message does not decode"
            break
        if len(channel) and (
            m.subject.n != <size_t>len(channel) or memcmp(
                m.subject.p, PyBytes_AS_STRING(channel), m.subject.n
            ) != 0
        ):
            why = "bad: record of another channel"
            break
        if m.seq <= last:
            why = f"bad: sequence {m.seq} after {last}"
            break
        block.add_ref(m.seq, m.ts, pos - begin, size)
        last = m.seq
        pos += 8 + size
    block.put_bytes(p + begin, pos - begin)
    return block, pos, why


def read_block(
    bytes data not None,
    const unsigned char[::1] index not None,
    Checksum crc not None,
    bint check_crc=True,
):
    """Messages read through their index: ``data`` is the ``.dat`` from the first entry's record on.

    Returns ``(block, why)``: the good messages up to the first bad one, and what is wrong with that
    one (``""`` if nothing).
    """
    cdef MsgBlock block = MsgBlock()
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef size_t n = <size_t>len(data)
    cdef Py_ssize_t count = index.shape[0] // ENTRY
    cdef Py_ssize_t k
    cdef const char* e
    cdef uint64_t base = 0
    cdef uint64_t off
    cdef uint32_t size
    cdef uint64_t seq
    cdef Stored m
    cdef uint32_t got
    cdef str why = ""
    if count:
        base = get64(<const char*>&index[8])
    block.put_bytes(p, n)
    for k in range(count):
        e = <const char*>&index[k * ENTRY]
        seq = get64(e)
        size = get32(e + 24)
        off = get64(e + 8) - base
        if not holds(n, base, get64(e + 8), size):
            why = f"sequence {seq}: the file ends inside the record"
            break
        if check_crc or get32(p + off) != size:
            # A wrong size in the header does no harm while the index knows the right one: the CRC
            # tells.
            got = crc.of(p + off + 8, size)
            if got != get32(p + off + 4) and get32(p + off) != size:
                why = f"sequence {seq}: expected size to be {size}, got {get32(p + off)}"
                break
            if got != get32(p + off + 4):
                why = (
                    f"sequence {seq}: corrupted data, expected crc to be "
                    f"0x{get32(p + off + 4):08x}, got 0x{got:08x}"
                )
                break
        if not read_message(p + off + 8, size, &m) or m.seq != seq:
            why = f"sequence {seq}: the record holds sequence {m.seq}"
            break
        block.add_ref(seq, <int64_t>get64(e + 16), <size_t>off, size)
    return block, why


def cut(MsgBlock block not None, uint64_t last):
    """The messages of a sealed block up to sequence ``last``, as a block of their own."""
    cdef MsgBlock out = MsgBlock()
    cdef Py_ssize_t k
    cdef size_t end = 0
    for k in range(block.count):
        if block.refs[k].seq > last:
            break
        out.add_ref(block.refs[k].seq, block.refs[k].ts, block.refs[k].off, block.refs[k].size)
        end = block.refs[k].off + GAP + block.refs[k].size
    out.put_bytes(block.buf, end)
    return out


def typed_record(int kind, bytes payload not None, Checksum crc not None):
    """One record of ``clients.dat`` or ``subs.dat``."""
    cdef char[8] head
    if len(payload) > 0xFFFFFF:
        raise ValueError(f"a record of {len(payload)} bytes does not fit")
    put32(head, <uint32_t>kind << 24 | <uint32_t>len(payload))
    put32(head + 4, crc.of(PyBytes_AS_STRING(payload), <size_t>len(payload)))
    return head[:8] + payload


def untyped_record(bytes payload not None, Checksum crc not None):
    """The record of ``server.dat``."""
    cdef char[8] head
    put32(head, <uint32_t>len(payload))
    put32(head + 4, crc.of(PyBytes_AS_STRING(payload), <size_t>len(payload)))
    return head[:8] + payload


def scan_typed(bytes data not None, Checksum crc not None, bint check_crc=True):
    """Records of a typed file without its version: ``(records, end, why)``.

    ``records`` is ``[(type, payload), ...]``; ``end`` is the position behind the last good one;
    ``why`` as in ``scan_data``.
    """
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef size_t n = <size_t>len(data)
    cdef size_t pos = 0
    cdef uint32_t head
    cdef uint32_t size
    cdef uint32_t got
    cdef list out = []
    while pos < n:
        if n - pos < 8:
            return out, pos, "torn"
        head = get32(p + pos)
        if head == 0 and get32(p + pos + 4) == 0:
            return out, pos, "zeros" if only_zeros(p + pos, n - pos) else "bad: empty record"
        size = head & 0xFFFFFF
        if size > n - pos - 8:
            return out, pos, "torn"
        if check_crc:
            got = crc.of(p + pos + 8, size)
            if got != get32(p + pos + 4):
                return out, pos, (
                    "bad: corrupted data, expected crc to be "
                    f"0x{get32(p + pos + 4):08x}, got 0x{got:08x}"
                )
        out.append((<int>(head >> 24), PyBytes_FromStringAndSize(p + pos + 8, size)))
        pos += 8 + size
    return out, pos, ""


def encode_events(SubEvents events not None, Checksum crc not None):
    """The records of sent and acknowledged sequences, and leaves ``events`` empty."""
    cdef bytes out = PyBytes_FromStringAndSize(NULL, events.count * 30)
    cdef char* start = PyBytes_AS_STRING(out)
    cdef char* p = start
    cdef char* q
    cdef Py_ssize_t i
    for i in range(events.count):
        q = p + 8
        if events.events[i].sub_id:
            q[0] = 0x08
            q = put_varint(q + 1, events.events[i].sub_id)
        q[0] = 0x10
        q = put_varint(q + 1, events.events[i].seq)
        put32(p, (4U if events.events[i].acked else 5U) << 24 | <uint32_t>(q - p - 8))
        put32(p + 4, crc.of(p + 8, <size_t>(q - p - 8)))
        p = q
    events.count = 0
    return PyBytes_FromStringAndSize(start, p - start)


def read_readable(
    bytes data not None, const unsigned char[::1] index not None, Checksum crc not None
):
    """``read_block`` that goes on behind bad records: ``(block, [(sequence, offset, what is wrong),
    ...])``.
    """
    cdef MsgBlock block = MsgBlock()
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef size_t n = <size_t>len(data)
    cdef Py_ssize_t count = index.shape[0] // ENTRY
    cdef Py_ssize_t k
    cdef const char* e
    cdef uint64_t base = 0
    cdef uint64_t off
    cdef uint32_t size
    cdef uint64_t seq
    cdef Stored m
    cdef uint32_t got
    cdef list bad = []
    if count:
        base = get64(<const char*>&index[8])
    block.put_bytes(p, n)
    for k in range(count):
        e = <const char*>&index[k * ENTRY]
        seq = get64(e)
        size = get32(e + 24)
        off = get64(e + 8) - base
        if not holds(n, base, get64(e + 8), size):
            bad.append((seq, get64(e + 8), "unexpected EOF"))
            continue
        got = crc.of(p + off + 8, size)
        if got != get32(p + off + 4):
            why = f"corrupted data, expected crc to be 0x{get32(p + off + 4):08x}, got 0x{got:08x}"
            bad.append((seq, get64(e + 8), why))
        elif not read_message(p + off + 8, size, &m) or m.seq != seq:
            bad.append((seq, get64(e + 8), f"the record holds sequence {m.seq}"))
        else:
            block.add_ref(seq, <int64_t>get64(e + 16), <size_t>off, size)
    return block, bad


cdef enum:
    _HEADER = 8
    #: The last field of a message, and one that no record of clients or subscriptions has passed.
    _TIMESTAMP = 5
    _LAST_FIELD = 15


cdef int field_ends(const char* p, size_t n, int most, size_t* ends) noexcept nogil:
    """Where the fields of the record at the start of ``n`` bytes end, whatever size its header
    says; returns how many there are, ``most`` at most.

    Those of a whole record are among them, one that the header behind it looks like may be, too.
    """
    cdef size_t pos = _HEADER
    cdef uint64_t v[2]
    cdef uint64_t last = 0
    cdef uint8_t byte
    cdef int count = 0
    cdef int k
    cdef int shift
    while count < most:
        for k in range(2):
            v[k] = 0
            shift = 0
            while True:
                if pos >= n or shift > 63:
                    return count
                byte = <uint8_t>p[pos]
                pos += 1
                v[k] |= <uint64_t>(byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
        if not last < v[0] >> 3 <= <uint64_t>most or v[0] & 7 not in (0, 2):
            return count
        last = v[0] >> 3
        if v[0] & 7 == 2:
            if v[1] > n - pos:
                return count
            pos += v[1]
        ends[count] = pos
        count += 1
    return count


cdef size_t claimed(const char* p, size_t n, size_t size, uint64_t most) noexcept nogil:
    """Bytes of the record at the start of ``n`` bytes, header included, if its fields fill the
    ``size`` that its header says, or would: they may go on behind the bytes that are there. 0: they
    do not.

    Fields are numbers and texts, in ascending order up to ``most``. Those of a size that has been
    changed hardly ever fill it: what comes behind a message's timestamp, or has the zeros of
    another record's header, is no field.
    """
    cdef size_t end = _HEADER + size
    cdef size_t pos = _HEADER
    cdef uint64_t v[2]
    cdef uint64_t last = 0
    cdef uint8_t byte
    cdef int k
    cdef int shift
    while pos < end:
        # A tag, and a number or the size of a string.
        for k in range(2):
            v[k] = 0
            shift = 0
            while True:
                if pos >= n or pos >= end:
                    return end if pos < end else 0
                byte = <uint8_t>p[pos]
                pos += 1
                v[k] |= <uint64_t>(byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 63:
                    return 0
        if not last < v[0] >> 3 <= most or v[0] & 7 not in (0, 2):
            return 0
        last = v[0] >> 3
        if v[0] & 7 == 2:
            if v[1] > end - pos:
                return 0
            pos += v[1]
    return end if last else 0


cdef Summed sums_of(bytes data, Checksum crc, Summed sums):
    """The sums of ``data`` that the caller has kept, or new ones."""
    if sums is None:
        return Summed(data, crc)
    if sums.data is not data or sums.crc is not crc:
        raise ValueError("these are the sums of other data")
    return sums


cdef size_t bad_size(
    const char* p,
    size_t n,
    size_t size,
    int kinds,
    const Span* channel,
    uint64_t after,
    Summed sums,
) noexcept nogil:
    """Bytes of the bad record at the start of ``n`` bytes, header included, of which the header
    says ``size``; more than ``n`` if it goes on behind them. 1: nothing tells.

    ``kinds``: of a record that has a type; 0: of a message, of ``channel``.

    Of what may have been changed, the size goes first: where the checksum is that of the first
    fields, they are the record. Then the header is right if the data end there or go on with a
    whole record; then if the fields fill it. Else one of them may end so.
    """
    cdef size_t[16] ends
    cdef size_t end = _HEADER + size
    cdef int most = _LAST_FIELD if kinds else _TIMESTAMP
    cdef int count = field_ends(p, n, most, ends)
    cdef int k
    for k in range(count):
        if sums.of(p + _HEADER, ends[k] - _HEADER) == get32(p + 4):
            return ends[k]
    if goes_on(p, n, end, kinds, channel, after, sums):
        return end
    end = claimed(p, n, size, <uint64_t>most)
    if end:
        return end
    for k in range(count - 1, -1, -1):
        if goes_on(p, n, ends[k], kinds, channel, after, sums):
            return ends[k]
    return 1


cdef bint goes_on(
    const char* p,
    size_t n,
    size_t at,
    int kinds,
    const Span* channel,
    uint64_t after,
    Summed sums,
) noexcept nogil:
    """Whether ``n`` bytes end at ``at``, or go on there with a whole record."""
    if at >= n:
        return at == n
    if kinds:
        return is_typed(p + at, n - at, kinds, sums)
    return is_next(p + at, n - at, channel, after, sums)


def search_from(
    bytes data not None,
    Py_ssize_t start,
    bytes channel not None,
    uint64_t after,
    Checksum crc not None,
    Summed sums=None,
):
    """Where to look for whole messages behind the bad one at ``start``; it may be behind ``data``.

    Not within it, where its checksum, its header or its fields tell how far it goes: a payload may
    hold whole messages, which nobody has published here.
    """
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef size_t n = <size_t>len(data)
    cdef size_t pos = <size_t>max(start, 0)
    cdef Span name
    sums = sums_of(data, crc, sums)
    if pos + _HEADER > n:
        return <Py_ssize_t>n
    name.p = PyBytes_AS_STRING(channel)
    name.n = <size_t>len(channel)
    p += pos
    return <Py_ssize_t>(pos + bad_size(p, n - pos, get32(p), 0, &name, after, sums))


cdef bint is_next(
    const char* p, size_t n, const Span* channel, uint64_t after, Summed sums
) noexcept nogil:
    """Whether ``n`` bytes begin with a whole message of ``channel``, of any if that is empty, with
    a sequence above ``after``.
    """
    cdef uint32_t size
    cdef Stored m
    # Every message starts with its sequence, field 1.
    if n < 10 or p[8] != 8:
        return False
    size = get32(p)
    return (
        size >= 2
        and size <= n - 8
        and read_message(p + 8, size, &m)
        and m.seq > after
        and (
            channel.n == 0
            or m.subject.n == channel.n
            and memcmp(m.subject.p, channel.p, channel.n) == 0
        )
        and sums.of(p + 8, size) == get32(p + 4)
    )


def next_record(
    bytes data not None,
    Py_ssize_t start,
    bytes channel not None,
    uint64_t after,
    Checksum crc not None,
    Summed sums=None,
):
    """Where the next whole message of ``channel`` with a sequence above ``after`` begins at or
    behind ``start``; -1: none.

    For what lies behind a record that is bad, so every position is tried: the fields first, the CRC
    only where they fit.
    """
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef size_t n = <size_t>len(data)
    cdef size_t pos = <size_t>max(start, 0)
    cdef Span name
    cdef bint found = False
    sums = sums_of(data, crc, sums)
    name.p = PyBytes_AS_STRING(channel)
    name.n = <size_t>len(channel)
    with nogil:
        while pos + 10 <= n:
            found = is_next(p + pos, n - pos, &name, after, sums)
            if found:
                break
            pos += 1
    return <Py_ssize_t>pos if found else -1


def search_from_typed(
    bytes data not None,
    Py_ssize_t start,
    int kinds,
    Checksum crc not None,
    Summed sums=None,
):
    """Where to look for whole records of a type from 1 to ``kinds`` behind the bad one at
    ``start``.

    As ``search_from``: clients choose texts.
    """
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef size_t n = <size_t>len(data)
    cdef size_t pos = <size_t>max(start, 0)
    cdef Span name
    sums = sums_of(data, crc, sums)
    if pos + _HEADER > n:
        return <Py_ssize_t>n
    name.p = p
    name.n = 0
    p += pos
    return <Py_ssize_t>(pos + bad_size(p, n - pos, get32(p) & 0xFFFFFF, kinds, &name, 0, sums))


cdef bint is_typed(const char* p, size_t n, int kinds, Summed sums) noexcept nogil:
    """Whether ``n`` bytes begin with a whole record that has one of these types and a payload:
    eight bytes prove nothing.
    """
    cdef uint32_t head
    cdef uint32_t size
    if n <= _HEADER:
        return False
    head = get32(p)
    size = head & 0xFFFFFF
    return (
        1 <= <int>(head >> 24) <= kinds
        and 0 < size <= n - _HEADER
        and sums.of(p + _HEADER, size) == get32(p + 4)
    )


def next_typed(
    bytes data not None,
    Py_ssize_t start,
    int kinds,
    Checksum crc not None,
    Summed sums=None,
):
    """Where the next whole record of a type from 1 to ``kinds`` begins at or behind ``start``; -1
    if none does.

    Records without payload are passed over.
    """
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef size_t n = <size_t>len(data)
    cdef size_t pos = <size_t>max(start, 0)
    sums = sums_of(data, crc, sums)
    while pos + 9 <= n:
        if is_typed(p + pos, n - pos, kinds, sums):
            return <Py_ssize_t>pos
        pos += 1
    return -1
