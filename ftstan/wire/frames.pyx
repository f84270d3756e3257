"""NATS framing: bytes to frames and back, with no socket and no copy.

``next_frame`` looks at one buffer and says where a whole frame lies in it; the caller keeps what is
incomplete and calls again with more. ``OutBuf`` collects PUB frames for one write. Nothing here
knows what the payloads mean.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.string cimport memchr, memcpy

from ftstan.base.errors import WireError

cdef enum:
    #: Longest line accepted: INFO lists every route of a large NATS cluster.
    MAX_LINE = 1 << 20
    #: Longest message that is passed over; NATS servers do not take a larger max_payload.
    MAX_PASSED_OVER = 1 << 30


cdef inline bint is_word(const char* p, size_t n, const char* word, size_t wn) noexcept nogil:
    """Whether the line starts with ``word`` (given in capitals), in any case."""
    cdef size_t i
    cdef char c
    if n < wn:
        return False
    for i in range(wn):
        c = p[i]
        if 97 <= c <= 122:
            c -= 32
        if c != word[i]:
            return False
    return True


cdef inline bint number(Span s, uint64_t* out) noexcept nogil:
    cdef uint64_t v = 0
    cdef size_t i
    if s.n == 0 or s.n > 18:
        return False
    for i in range(s.n):
        if s.p[i] < 48 or s.p[i] > 57:
            return False
        v = v * 10 + <uint64_t>(s.p[i] - 48)
    out[0] = v
    return True


cdef inline int words(const char* p, const char* end, Span* out, int most) noexcept nogil:
    """Split at blanks; the number of words, or -1 if there are more than ``most``."""
    cdef int count = 0
    while True:
        while p < end and (p[0] == 32 or p[0] == 9):
            p += 1
        if p == end:
            return count
        if count == most:
            return -1
        out[count].p = p
        while p < end and p[0] != 32 and p[0] != 9:
            p += 1
        out[count].n = <size_t>(p - out[count].p)
        count += 1


cdef inline Py_ssize_t message(const char* p, size_t n, size_t line, size_t eol, size_t max_payload,
                               Frame* out) noexcept nogil:
    """MSG and HMSG: ``line`` bytes of control line without its end, ``eol`` bytes with it."""
    cdef Span[5] w
    cdef size_t skip = 4 if out.kind == MSG else 5
    cdef int most = 4 if out.kind == MSG else 5
    cdef int numbers = 1 if out.kind == MSG else 2
    cdef uint64_t size = 0
    cdef uint64_t header = 0
    cdef int count = words(p + skip, p + line, w, most)
    if count < most - 1 or not number(w[1], &out.sid) or not number(w[count - 1], &size):
        return -1
    if numbers == 2 and (not number(w[count - 2], &header) or header > size):
        return -1
    # A header is not part of the payload limit's purpose, but the sum must stay bounded.
    if size > max_payload + 65536:
        if size > MAX_PASSED_OVER:
            return -1
        out.payload.p = p + eol
        out.payload.n = <size_t>size
        return OVERSIZED
    out.subject = w[0]
    if count == most:
        out.reply = w[2]
    else:
        out.reply.p = p
        out.reply.n = 0
    if n - eol < size + 2:
        return 0
    if p[eol + size] != 13 or p[eol + size + 1] != 10:
        return -1
    out.headers.p = p + eol
    out.headers.n = <size_t>header
    out.payload.p = p + eol + header
    out.payload.n = <size_t>(size - header)
    return <Py_ssize_t>(eol + size + 2)


cdef Py_ssize_t next_frame(const char* p, size_t n, size_t max_payload, Frame* out) noexcept nogil:
    cdef const char* nl
    cdef size_t line
    cdef size_t eol
    if n == 0:
        return 0
    nl = <const char*>memchr(p, 10, n if n < MAX_LINE else MAX_LINE)
    if nl == NULL:
        return 0 if n < MAX_LINE else -1
    eol = <size_t>(nl - p) + 1
    line = eol - 1
    if line > 0 and p[line - 1] == 13:
        line -= 1
    if is_word(p, line, b"MSG", 3) and line > 3 and (p[3] == 32 or p[3] == 9):
        out.kind = MSG
        return message(p, n, line, eol, max_payload, out)
    if is_word(p, line, b"HMSG", 4) and line > 4 and (p[4] == 32 or p[4] == 9):
        out.kind = HMSG
        return message(p, n, line, eol, max_payload, out)
    out.payload.p = p
    out.payload.n = 0
    if is_word(p, line, b"PING", 4):
        out.kind = PING
    elif is_word(p, line, b"PONG", 4):
        out.kind = PONG
    elif is_word(p, line, b"+OK", 3):
        out.kind = OK
    elif is_word(p, line, b"INFO", 4):
        out.kind = INFO
        out.payload.p = p + 4
        out.payload.n = line - 4
    elif is_word(p, line, b"-ERR", 4):
        out.kind = ERR
        out.payload.p = p + 4
        out.payload.n = line - 4
    else:
        return -1
    return <Py_ssize_t>eol


cdef class OutBuf:
    """Frames waiting for one write; readable through the buffer protocol."""

    def __dealloc__(self):
        PyMem_RawFree(self.buf)

    cdef int grow(self, size_t more) except -1:
        cdef size_t need = self.used + more
        cdef size_t cap = self.cap
        cdef void* p
        if need <= cap:
            return 0
        if self.exports:
            raise BufferError("the buffer is being sent")
        if cap == 0:
            cap = 4096
        while cap < need:
            cap *= 2
        p = PyMem_RawRealloc(self.buf, cap)
        if p == NULL:
            raise MemoryError
        self.buf = <char*>p
        self.cap = cap
        return 0

    cdef char* pub(self, Span subject, Span reply, size_t size) except NULL:
        """Start a PUB frame: returns where its payload of ``size`` bytes goes; the frame's end is
        already in place.
        """
        cdef char[24] digits
        cdef int nd = 0
        cdef size_t rest = size
        cdef char* p
        self.grow(subject.n + reply.n + size + 40)
        p = self.buf + self.used
        memcpy(p, b"PUB ", 4)
        memcpy(p + 4, subject.p, subject.n)
        p += 4 + subject.n
        p[0] = 32
        p += 1
        if reply.n:
            memcpy(p, reply.p, reply.n)
            p += reply.n
            p[0] = 32
            p += 1
        while True:
            digits[23 - nd] = <char>(48 + rest % 10)
            nd += 1
            rest //= 10
            if rest == 0:
                break
        memcpy(p, &digits[24 - nd], nd)
        p += nd
        p[0] = 13
        p[1] = 10
        p += 2
        p[size] = 13
        p[size + 1] = 10
        self.used = <size_t>(p - self.buf) + size + 2
        return p

    cdef int put(self, const char* data, size_t n) except -1:
        if n == 0:
            # There may be no buffer yet.
            return 0
        self.grow(n)
        memcpy(self.buf + self.used, data, n)
        self.used += n
        return 0

    def __len__(self):
        return <Py_ssize_t>self.used

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.buf, <Py_ssize_t>self.used, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self.exports -= 1

    def clear(self):
        """Forget everything; a buffer that grew beyond 8 MiB gives its memory back."""
        if self.exports:
            raise BufferError("the buffer is being sent")
        self.used = 0
        if self.cap > 8 << 20:
            PyMem_RawFree(self.buf)
            self.buf = NULL
            self.cap = 0

    def write(self, bytes data not None):
        """Append whole protocol lines as they are."""
        self.put(PyBytes_AS_STRING(data), <size_t>len(data))

    def publish(self, bytes subject not None, bytes reply not None, bytes payload not None):
        """Append one PUB frame."""
        cdef Span s
        cdef Span r
        cdef char* p
        s.p = PyBytes_AS_STRING(subject)
        s.n = <size_t>len(subject)
        r.p = PyBytes_AS_STRING(reply)
        r.n = <size_t>len(reply)
        p = self.pub(s, r, <size_t>len(payload))
        memcpy(p, PyBytes_AS_STRING(payload), <size_t>len(payload))


cdef class Parser:
    """A stream parser that keeps what is incomplete: for tools, load generators and tests."""

    cdef bytearray kept
    cdef size_t max_payload

    def __init__(self, size_t max_payload=1 << 20):
        self.kept = bytearray()
        self.max_payload = max_payload

    @property
    def unfinished(self):
        """The bytes of a frame that is not complete yet."""
        return bytes(self.kept)

    def feed(self, data not None):
        """Take more bytes; return the frames completed by them, each a tuple that starts with its
        name.

        ``("MSG", subject, sid, reply, payload)``, ``("HMSG", subject, sid, reply, headers,
        payload)``, ``("INFO", text)``, ``("-ERR", text)``, ``("PING",)``, ``("PONG",)``,
        ``("+OK",)``. Raises ``WireError`` on a broken stream.
        """
        cdef Frame f
        cdef const unsigned char[::1] view
        cdef const char* p
        cdef size_t pos = 0
        cdef size_t n
        cdef Py_ssize_t took
        cdef list events = []
        self.kept += data
        n = <size_t>len(self.kept)
        if n == 0:
            return events
        view = self.kept
        p = <const char*>&view[0]
        while True:
            took = next_frame(p + pos, n - pos, self.max_payload, &f)
            if took <= 0:
                break
            events.append(as_tuple(&f))
            pos += <size_t>took
        view = None
        del self.kept[:pos]
        if took < 0:
            raise WireError(f"not the NATS protocol: {bytes(self.kept[:64])!r}")
        return events

    def count_messages(self, data not None):
        """Like ``feed``, but only the number of MSG and HMSG frames: for load generators."""
        cdef Frame f
        cdef const unsigned char[::1] view
        cdef size_t pos = 0
        cdef size_t n
        cdef Py_ssize_t took
        cdef Py_ssize_t count = 0
        self.kept += data
        n = <size_t>len(self.kept)
        if n == 0:
            return 0
        view = self.kept
        while True:
            took = next_frame(<const char*>&view[0] + pos, n - pos, self.max_payload, &f)
            if took <= 0:
                break
            if f.kind == MSG or f.kind == HMSG:
                count += 1
            pos += <size_t>took
            if pos == n:
                took = 0
                break
        view = None
        del self.kept[:pos]
        if took < 0:
            raise WireError(f"not the NATS protocol: {bytes(self.kept[:64])!r}")
        return count


cdef tuple as_tuple(const Frame* f):
    cdef bytes payload = PyBytes_FromStringAndSize(f.payload.p, <Py_ssize_t>f.payload.n)
    if f.kind == PING:
        return ("PING",)
    if f.kind == PONG:
        return ("PONG",)
    if f.kind == OK:
        return ("+OK",)
    if f.kind == INFO:
        return ("INFO", payload.strip())
    if f.kind == ERR:
        return ("-ERR", payload.strip())
    subject = PyBytes_FromStringAndSize(f.subject.p, <Py_ssize_t>f.subject.n)
    reply = PyBytes_FromStringAndSize(f.reply.p, <Py_ssize_t>f.reply.n)
    if f.kind == MSG:
        return ("MSG", subject, f.sid, reply, payload)
    headers = PyBytes_FromStringAndSize(f.headers.p, <Py_ssize_t>f.headers.n)
    return ("HMSG", subject, f.sid, reply, headers, payload)


def pub_frame(bytes subject not None, bytes reply not None, bytes payload not None):
    """One PUB frame; ``reply`` may be empty."""
    cdef OutBuf out = OutBuf()
    out.publish(subject, reply, payload)
    return PyBytes_FromStringAndSize(out.buf, <Py_ssize_t>out.used)
