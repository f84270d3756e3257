"""Hot messages: PubMsg, PubAck, MsgProto and Ack between bytes and C structures, without a Python
object per message.

Decoding follows the rules of the original server (``docs/compat/protocol.md``): a truncated field,
an illegal tag or a wrong wire type of a known field is an error, unknown fields are skipped, the
last duplicate wins, strings are raw bytes. Encoding emits fields in ascending order and omits zero
values. This file allocates nothing and does no I/O; the ``def`` functions at its end exist for
tests and cold paths.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

from ftstan.base.errors import WireError


cdef enum:
    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    GROUP = 3
    END_GROUP = 4
    FIXED32 = 5

    #: Field numbers that ``read_fields`` can know; those of the protocol end at 101.
    KNOWN = 128


cdef const char* get_varint(const char* p, const char* end, uint64_t* out) noexcept nogil:
    """The position behind the number, or NULL if it is truncated or longer than ten bytes."""
    cdef uint64_t v = 0
    cdef int shift = 0
    cdef uint8_t b
    while p < end and shift < 64:
        b = <uint8_t>p[0]
        p += 1
        v |= (<uint64_t>(b & 0x7F)) << shift
        if b < 0x80:
            out[0] = v
            return p
        shift += 7
    return NULL


cdef const char* get_bytes(const char* p, const char* end, Span* out) noexcept nogil:
    cdef uint64_t n
    p = get_varint(p, end, &n)
    if p == NULL or n > <uint64_t>(end - p):
        return NULL
    out.p = p
    out.n = <size_t>n
    return p + n


cdef const char* skip_field(const char* p, const char* end, int wire_type) noexcept nogil:
    """Step over the value of an unknown field; NULL if it is truncated or its wire type is illegal.
    """
    cdef uint64_t v
    cdef Span ignored
    cdef int depth = 0
    while True:
        if wire_type == VARINT:
            p = get_varint(p, end, &v)
        elif wire_type == FIXED64:
            p = p + 8 if end - p >= 8 else NULL
        elif wire_type == BYTES:
            p = get_bytes(p, end, &ignored)
        elif wire_type == GROUP:
            depth += 1
        elif wire_type == END_GROUP:
            if depth == 0:
                return NULL
            depth -= 1
        elif wire_type == FIXED32:
            p = p + 4 if end - p >= 4 else NULL
        else:
            return NULL
        if p == NULL or depth == 0:
            return p
        p = get_varint(p, end, &v)
        if p == NULL:
            return NULL
        wire_type = <int>(v & 7)


cdef const char* get_tag(const char* p, const char* end, int* field, int* wire_type) noexcept nogil:
    """Read a tag; NULL if it is truncated, of field number below one, or ends a group that never
    began.
    """
    cdef uint64_t tag
    p = get_varint(p, end, &tag)
    if p == NULL:
        return NULL
    wire_type[0] = <int>(tag & 7)
    field[0] = <int>(<uint32_t>(tag >> 3))
    if wire_type[0] == END_GROUP or field[0] <= 0:
        return NULL
    return p


cdef int read_pub_msg(const char* p, size_t n, PubMsg* out) noexcept nogil:
    """0, or -1 if undecodable; ``out`` then holds what came before the error (the guid goes into
    the refusal).
    """
    cdef const char* end = p + n
    cdef int field = 0
    cdef int wire_type = 0
    cdef Span ignored
    cdef Span* target
    out.client_id.n = out.guid.n = out.subject.n = out.reply.n = out.data.n = out.conn_id.n = 0
    out.client_id.p = out.guid.p = out.subject.p = out.reply.p = out.data.p = out.conn_id.p = p
    while p < end:
        p = get_tag(p, end, &field, &wire_type)
        if p == NULL:
            return -1
        if field == 1:
            target = &out.client_id
        elif field == 2:
            target = &out.guid
        elif field == 3:
            target = &out.subject
        elif field == 4:
            target = &out.reply
        elif field == 5:
            target = &out.data
        elif field == 6:
            target = &out.conn_id
        elif field == 10:
            target = &ignored
        else:
            p = skip_field(p, end, wire_type)
            if p == NULL:
                return -1
            continue
        if wire_type != BYTES:
            return -1
        p = get_bytes(p, end, target)
        if p == NULL:
            return -1
    return 0


cdef int read_ack(const char* p, size_t n, Ack* out) noexcept nogil:
    """0, or -1 if undecodable."""
    cdef const char* end = p + n
    cdef int field = 0
    cdef int wire_type = 0
    out.subject.p = p
    out.subject.n = 0
    out.sequence = 0
    while p < end:
        p = get_tag(p, end, &field, &wire_type)
        if p == NULL:
            return -1
        if field == 1:
            if wire_type != BYTES:
                return -1
            p = get_bytes(p, end, &out.subject)
        elif field == 2:
            if wire_type != VARINT:
                return -1
            p = get_varint(p, end, &out.sequence)
        else:
            p = skip_field(p, end, wire_type)
        if p == NULL:
            return -1
    return 0


cdef bint read_ctrl_msg(const char* p, size_t n) noexcept nogil:
    """Whether the bytes are a server-to-server control message (which always starts with field 1 as
    a number).
    """
    cdef const char* end = p + n
    cdef int field = 0
    cdef int wire_type = 0
    cdef uint64_t v
    cdef Span ignored
    if n == 0 or <uint8_t>p[0] != 0x08:
        return False
    while p < end:
        p = get_tag(p, end, &field, &wire_type)
        if p == NULL:
            return False
        if field == 1:
            if wire_type != VARINT:
                return False
            p = get_varint(p, end, &v)
        elif field <= 4:
            if wire_type != BYTES:
                return False
            p = get_bytes(p, end, &ignored)
        else:
            p = skip_field(p, end, wire_type)
        if p == NULL:
            return False
    return True


cdef size_t varint_size(uint64_t v) noexcept nogil:
    cdef size_t n = 1
    while v >= 0x80:
        v >>= 7
        n += 1
    return n


cdef char* put_varint(char* p, uint64_t v) noexcept nogil:
    while v >= 0x80:
        p[0] = <char>(<uint8_t>(v & 0x7F) | 0x80)
        p += 1
        v >>= 7
    p[0] = <char>(<uint8_t>v)
    return p + 1


cdef char* put_field(char* p, uint8_t tag, const char* data, size_t n) noexcept nogil:
    """A length-delimited field, or nothing when it is empty."""
    if n == 0:
        return p
    p[0] = <char>tag
    p = put_varint(p + 1, n)
    memcpy(p, data, n)
    return p + n


cdef size_t field_size(size_t n) noexcept nogil:
    """Bytes of ``put_field`` with a one-byte tag."""
    return 0 if n == 0 else 1 + varint_size(n) + n


cdef size_t msg_proto_size(
    uint64_t seq, size_t subject, size_t reply, size_t data, int64_t ts
) noexcept nogil:
    return (
        (0 if seq == 0 else 1 + varint_size(seq))
        + field_size(subject)
        + field_size(reply)
        + field_size(data)
        + (0 if ts == 0 else 1 + varint_size(<uint64_t>ts))
    )


cdef char* put_msg_proto(
    char* p, uint64_t seq, Span subject, Span reply, Span data, int64_t ts
) noexcept nogil:
    """A stored and delivered message: the same bytes in the file and on the wire."""
    if seq != 0:
        p[0] = 0x08
        p = put_varint(p + 1, seq)
    p = put_field(p, 0x12, subject.p, subject.n)
    p = put_field(p, 0x1A, reply.p, reply.n)
    p = put_field(p, 0x22, data.p, data.n)
    if ts != 0:
        p[0] = 0x28
        p = put_varint(p + 1, <uint64_t>ts)
    return p


cdef size_t largest_delivery(size_t subject, size_t reply, size_t data) noexcept nogil:
    """Bytes of a delivered message at the most: whatever its sequence and time, and however often
    it is resent.
    """
    return msg_proto_size(<uint64_t>-1, subject, reply, data, 0x7FFFFFFFFFFFFFFF) + redelivery_size(
        <uint32_t>-1
    )


cdef size_t redelivery_size(uint32_t count) noexcept nogil:
    return 2 + (0 if count == 0 else 1 + varint_size(count))


cdef char* put_redelivery(char* p, uint32_t count) noexcept nogil:
    """What a resend has behind the stored bytes: ``redelivered`` and ``redeliveryCount``."""
    p[0] = 0x30
    p[1] = 0x01
    p += 2
    if count != 0:
        p[0] = 0x38
        p = put_varint(p + 1, count)
    return p


cdef str number_reason(const char* p, const char* end):
    """Why there is no number at ``p``."""
    return "number of more than ten bytes" if end - p >= 10 else "truncated"


def read_fields(bytes data not None, bytes kinds not None, tuple names not None):
    """The known fields that are present, by name: bytes, and numbers of 64 bits. For any message
    class but the hot ones.

    ``kinds``: for each field number below 128, from 0, whether it is unknown, a number or bytes (0,
    1, 2); ``names``: what each is called. The time it takes is a few nanoseconds a field, however
    many there are. Raises ``WireError`` with the reason.
    """
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef const char* end = p + len(data)
    cdef const char* known = PyBytes_AS_STRING(kinds)
    cdef int count = <int>min(len(kinds), KNOWN)
    cdef const char* at
    cdef int field = 0
    cdef int wire_type = 0
    cdef Span[KNOWN] strings
    cdef uint64_t[KNOWN] numbers
    cdef bint[KNOWN] present
    cdef uint64_t v = 0
    cdef int i
    for i in range(count):
        present[i] = False
    while p < end:
        at = p
        p = get_tag(p, end, &field, &wire_type)
        if p == NULL:
            raise WireError(
                number_reason(at, end) if get_varint(at, end, &v) == NULL else "illegal tag"
            )
        at = p
        if field >= count or known[field] == 0:
            p = skip_field(p, end, wire_type)
            if p == NULL:
                if wire_type == VARINT:
                    raise WireError(number_reason(at, end))
                if wire_type == GROUP:
                    raise WireError("illegal group")
                raise WireError("illegal wire type" if wire_type > FIXED32 else "truncated")
            continue
        if wire_type != (VARINT if known[field] == 1 else BYTES):
            raise WireError(f"wrong wire type for {names[field]}")
        if wire_type == VARINT:
            p = get_varint(p, end, &numbers[field])
        else:
            p = get_bytes(p, end, &strings[field])
        if p == NULL:
            raise WireError(
                number_reason(at, end) if get_varint(at, end, &v) == NULL else "truncated"
            )
        present[field] = True
    return {
        names[i]: numbers[i] if known[i] == 1 else as_bytes(strings[i])
        for i in range(count)
        if present[i]
    }


cdef inline bytes as_bytes(Span s):
    return PyBytes_FromStringAndSize(s.p, <Py_ssize_t>s.n)


cdef inline Span span_of(bytes b):
    cdef Span s
    s.p = PyBytes_AS_STRING(b)
    s.n = <size_t>len(b)
    return s


def decode_pub_msg(bytes data not None):
    """``(client_id, guid, subject, reply, data, conn_id)`` of a PubMsg.

    Raises ``WireError`` whose attribute ``guid`` holds what was decoded of the guid before the
    error.
    """
    cdef PubMsg m
    if read_pub_msg(PyBytes_AS_STRING(data), <size_t>len(data), &m) != 0:
        error = WireError("undecodable PubMsg")
        error.guid = as_bytes(m.guid)
        raise error
    return (
        as_bytes(m.client_id),
        as_bytes(m.guid),
        as_bytes(m.subject),
        as_bytes(m.reply),
        as_bytes(m.data),
        as_bytes(m.conn_id),
    )


def is_ctrl_msg(bytes data not None):
    """Whether ``data`` decodes as a server-to-server CtrlMsg."""
    return read_ctrl_msg(PyBytes_AS_STRING(data), <size_t>len(data))


def decode_ack(bytes data not None):
    """``(subject, sequence)`` of an Ack; raises ``WireError``."""
    cdef Ack a
    if read_ack(PyBytes_AS_STRING(data), <size_t>len(data), &a) != 0:
        raise WireError("undecodable Ack")
    return as_bytes(a.subject), a.sequence


def encode_msg_proto(
    uint64_t sequence,
    bytes subject not None,
    bytes reply not None,
    bytes data not None,
    int64_t timestamp,
):
    """An encoded MsgProto as it is stored."""
    cdef size_t n = msg_proto_size(
        sequence, <size_t>len(subject), <size_t>len(reply), <size_t>len(data), timestamp
    )
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>n)
    put_msg_proto(
        PyBytes_AS_STRING(out), sequence, span_of(subject), span_of(reply), span_of(data), timestamp
    )
    return out


def decode_msg_proto(bytes data not None):
    """``(sequence, subject, reply, data, timestamp, redelivered, redelivery_count)``; raises
    ``WireError``.
    """
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef const char* end = p + len(data)
    cdef int field = 0
    cdef int wire_type = 0
    cdef uint64_t v = 0
    cdef uint64_t[4] numbers  # sequence, timestamp, redelivered, count
    cdef Span[3] strings  # subject, reply, data
    cdef int i
    for i in range(4):
        numbers[i] = 0
    for i in range(3):
        strings[i].p = p
        strings[i].n = 0
    while p < end:
        p = get_tag(p, end, &field, &wire_type)
        if p == NULL:
            break
        if field == 1 or 5 <= field <= 7 or field == 10:
            p = get_varint(p, end, &v) if wire_type == VARINT else NULL
            if p != NULL and field != 10:
                numbers[0 if field == 1 else field - 4] = v
        elif 2 <= field <= 4:
            p = get_bytes(p, end, &strings[field - 2]) if wire_type == BYTES else NULL
        else:
            p = skip_field(p, end, wire_type)
        if p == NULL:
            break
    if p == NULL:
        raise WireError("undecodable MsgProto")
    return (
        numbers[0],
        as_bytes(strings[0]),
        as_bytes(strings[1]),
        as_bytes(strings[2]),
        <int64_t>numbers[1],
        numbers[2] != 0,
        <uint32_t>numbers[3],
    )


def encode_pub_ack(bytes guid not None, bytes error not None):
    """An encoded PubAck; ``error`` is empty on success."""
    cdef bytes out = PyBytes_FromStringAndSize(
        NULL, <Py_ssize_t>(field_size(<size_t>len(guid)) + field_size(<size_t>len(error)))
    )
    cdef char* p = PyBytes_AS_STRING(out)
    p = put_field(p, 0x0A, PyBytes_AS_STRING(guid), <size_t>len(guid))
    put_field(p, 0x12, PyBytes_AS_STRING(error), <size_t>len(error))
    return out


def redelivery_suffix(uint32_t count):
    """The fields ``redelivered`` and ``redeliveryCount`` that a resend has behind the stored bytes.
    """
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>redelivery_size(count))
    put_redelivery(PyBytes_AS_STRING(out), count)
    return out
