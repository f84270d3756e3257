"""Blocks with their payloads encrypted and decrypted: one call a block.

A message is taken apart as far as its payload; what stands around that is copied. Pure computation
on buffers: the cipher comes as a callable or as ``evp.Keys``, nonces come from the caller.
"""

from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from ftstan.stores.encryption.evp cimport Keys
from ftstan.wire.block cimport GAP, MsgBlock, MsgRef
from ftstan.wire.codec cimport Span, get_bytes, get_tag, put_varint, skip_field, varint_size

from ftstan.base.errors import DamageError, StoreError

cdef enum:
    _DATA = 4           # field of the payload
    _DATA_TAG = 0x22
    _NONCE = 12
    _TAG = 16
    _OVERHEAD = 29
    _BYTES = 2
    #: A record of more bytes has a size that no header can say.
    _MOST = 0xFFFFFFFF

cdef struct Parts:
    #: Where the payload's field begins and ends, tag included; NULL: there is none.
    const char* start
    const char* end
    Span data


cdef int find_data(const char* p, size_t n, Parts* out) except -1:
    cdef const char* end = p + n
    cdef const char* tag
    cdef int field = 0
    cdef int wire_type = 0
    out.start = out.end = NULL
    out.data.p = p
    out.data.n = 0
    while p < end:
        tag = p
        p = get_tag(p, end, &field, &wire_type)
        if p != NULL:
            if field == _DATA:
                p = get_bytes(p, end, &out.data) if wire_type == _BYTES else NULL
                out.start = tag
                out.end = p
            else:
                p = skip_field(p, end, wire_type)
        if p == NULL:
            raise DamageError("message does not decode")
    return 0


cdef int put_as_it_is(MsgBlock out, MsgBlock block, const MsgRef* r) except -1:
    out.grow(GAP + r.size)
    out.add_ref(r.seq, r.ts, out.used, r.size)
    memset(out.buf + out.used, 0, GAP)
    memcpy(out.buf + out.used + GAP, block.buf + r.off + GAP, r.size)
    out.used += GAP + r.size
    return 0


cdef size_t size_with(const MsgRef* r, const Parts* parts, size_t n, const char* p) except 0:
    """Bytes of a message with a payload of ``n``. Raises ``DamageError`` if it is too large."""
    cdef size_t size = (parts.start - p) + 1 + varint_size(n) + n + (p + r.size - parts.end)
    if size > _MOST:
        raise DamageError(f"message {r.seq} is too large")
    return size


cdef char* room_for(
    MsgBlock out, MsgBlock block, const MsgRef* r, const Parts* parts, size_t n
) except NULL:
    """Where a payload of ``n`` bytes is to be written, before ``put``; nothing has changed yet."""
    cdef const char* p = block.buf + r.off + GAP
    out.grow(GAP + size_with(r, parts, n, p))
    return out.buf + out.used + GAP + (parts.start - p) + 1 + varint_size(n)


cdef int put(MsgBlock out, MsgBlock block, const MsgRef* r, const Parts* parts, size_t n) except -1:
    """Put a message whose new payload of ``n`` bytes stands in its room already.

    An empty one has its field, too: without it, one before it would count.
    """
    cdef const char* p = block.buf + r.off + GAP
    cdef size_t before = parts.start - p
    cdef size_t after = p + r.size - parts.end
    cdef size_t size = size_with(r, parts, n, p)
    cdef char* to = out.buf + out.used
    memset(to, 0, GAP)
    to += GAP
    memcpy(to, p, before)
    to += before
    to[0] = _DATA_TAG
    to = put_varint(to + 1, n)
    memcpy(to + n, parts.end, after)
    out.add_ref(r.seq, r.ts, out.used, <uint32_t>size)
    out.used += GAP + size
    return 0


def seal(MsgBlock block not None, int code, encrypt, bytes nonces not None, Keys fast=None):
    """A block with the same messages, their payloads encrypted; empty ones stay empty.

    ``encrypt(nonce, payload, None)`` gives ciphertext and tag, ``code`` names its cipher;
    ``nonces``: 12 bytes a message. ``fast`` does it in the place of ``encrypt``.
    """
    cdef MsgBlock out = MsgBlock()
    cdef Py_ssize_t i
    cdef MsgRef* r
    cdef Parts parts
    cdef object sealed
    cdef size_t n
    cdef char* to
    cdef const char* nonce = PyBytes_AS_STRING(nonces)
    if PyBytes_GET_SIZE(nonces) != _NONCE * block.count:
        raise ValueError("a nonce for every message")
    # Once for all of them: a buffer that grows step by step is copied at each. The size of a
    # payload may take a byte more.
    out.grow(block.used + <size_t>block.count * (_OVERHEAD + 1))
    for i in range(block.count):
        r = &block.refs[i]
        find_data(block.buf + r.off + GAP, r.size, &parts)
        if parts.data.n == 0:
            put_as_it_is(out, block, r)
            continue
        n = 1 + _NONCE + parts.data.n + _TAG
        to = room_for(out, block, r, &parts, n)
        to[0] = <char>code
        memcpy(to + 1, nonce + _NONCE * i, _NONCE)
        if fast is not None:
            fast.seal(code, to + 1, parts.data.p, parts.data.n, to + 1 + _NONCE)
        else:
            sealed = encrypt(
                PyBytes_FromStringAndSize(nonce + _NONCE * i, _NONCE),
                PyBytes_FromStringAndSize(parts.data.p, <Py_ssize_t>parts.data.n),
                None,
            )
            if not PyBytes_CheckExact(sealed) or (
                <size_t>PyBytes_GET_SIZE(sealed) != parts.data.n + _TAG
            ):
                raise TypeError("a cipher gives bytes, and a tag behind them")
            memcpy(to + 1 + _NONCE, PyBytes_AS_STRING(sealed), parts.data.n + _TAG)
        put(out, block, r, &parts, n)
    return out


def unseal(
    MsgBlock block not None, uint64_t sequence, Py_ssize_t max_msgs, Py_ssize_t max_bytes, decrypt,
    bint refuse_plain=False, Keys fast=None,
):
    """Messages from the first at or after ``sequence``, with the payloads that clients sent.

    ``decrypt(stored)`` gives the payload of one that is, or may be, encrypted. Returns ``(block,
    sequence, error)``: where it raises ``StoreError``, the block ends before that message.
    ``max_bytes`` counts what is stored; there is at least one message if there is no error.
    ``refuse_plain``: one that was stored plain is such an error, too. ``fast`` is asked before
    ``decrypt``, which knows how to say what is wrong.
    """
    cdef MsgBlock out = MsgBlock()
    cdef Py_ssize_t i = block.find(sequence)
    cdef Py_ssize_t end = block.count if max_msgs > block.count - i else i + max(max_msgs, 1)
    cdef Py_ssize_t stored = 0
    cdef MsgRef* r
    cdef Parts parts
    cdef object data
    cdef uint8_t code
    if end - i > 1 and max_bytes > 0:
        out.grow(min(block.used, <size_t>max_bytes))
    while i < end:
        r = &block.refs[i]
        stored += <Py_ssize_t>r.size
        if stored > max_bytes and out.count:
            break
        find_data(block.buf + r.off + GAP, r.size, &parts)
        code = <uint8_t>parts.data.p[0] if parts.data.n else 1
        if parts.start == NULL or (code != 1 and code != 2):
            # None, or stored before encryption was switched on.
            if refuse_plain and parts.start != NULL and parts.data.n:
                return out, r.seq, StoreError(
                    "stored plain in an encrypted store",
                    hint="encrypt it with ftstanctl store rekey, or start without "
                    "-encryption_refuse_plain",
                )
            put_as_it_is(out, block, r)
        elif (
            fast is not None
            and parts.data.n >= _OVERHEAD
            and fast.open(
                code,
                parts.data.p,
                parts.data.n,
                room_for(out, block, r, &parts, parts.data.n - _OVERHEAD),
            )
        ):
            put(out, block, r, &parts, parts.data.n - _OVERHEAD)
        else:
            try:
                data = decrypt(
                    PyBytes_FromStringAndSize(parts.data.p, <Py_ssize_t>parts.data.n)
                )
            except StoreError as error:
                return out, r.seq, error
            if not PyBytes_CheckExact(data):
                raise TypeError("a cipher gives bytes")
            memcpy(
                room_for(out, block, r, &parts, <size_t>PyBytes_GET_SIZE(data)),
                PyBytes_AS_STRING(data),
                <size_t>PyBytes_GET_SIZE(data),
            )
            put(out, block, r, &parts, <size_t>PyBytes_GET_SIZE(data))
        i += 1
    return out, 0, None


def count_others(MsgBlock block not None, is_wanted):
    """How many messages have a payload of which ``is_wanted(stored)`` does not hold."""
    cdef Py_ssize_t i
    cdef Py_ssize_t count = 0
    cdef MsgRef* r
    cdef Parts parts
    for i in range(block.count):
        r = &block.refs[i]
        find_data(block.buf + r.off + GAP, r.size, &parts)
        if parts.data.n and not is_wanted(
            PyBytes_FromStringAndSize(parts.data.p, <Py_ssize_t>parts.data.n)
        ):
            count += 1
    return count


def stored_data(MsgBlock block not None, Py_ssize_t i):
    """The payload of message ``i`` as it is stored."""
    cdef MsgRef* r = block.at(i)
    cdef Parts parts
    find_data(block.buf + r.off + GAP, r.size, &parts)
    return PyBytes_FromStringAndSize(parts.data.p, <Py_ssize_t>parts.data.n)
