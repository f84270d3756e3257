"""One connection of a load, without its socket: bytes in, bytes out, and how long each message
took.

``feed`` takes what has arrived; what there is to send is in ``out``, which the caller sends and
clears. A message that a ``Publisher`` sends begins with the time of its sending and the mark of the
run (8 bytes each), so that a ``Subscriber`` of the same process knows how long it was under way,
and counts no message of somebody else.

Nothing here allocates per message, and nothing waits.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from libc.string cimport memcmp, memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from ftstan.base.errors import WireError
from ftstan.wire import messages
from ftstan.wire.codec cimport (
    field_size, get_bytes, get_tag, get_varint, put_field, put_varint, skip_field, varint_size
)
from ftstan.wire.frames cimport ERR, HMSG, MSG, PING, next_frame

cdef enum:
    VARINT_TYPE = 0
    BYTES_TYPE = 2

    DIGITS = 12

#: Numbers that the subscriptions of one connection have on it.
ANSWERS_SID = 1
HEARTBEATS_SID = 2
MESSAGES_SID = 3

#: Bytes of the time and of the mark that begin each message.
HEAD_SIZE = 16
MARK_SIZE = 8
#: Bytes of a guid, as those of the known clients, and of what it begins with; its number follows.
GUID_SIZE = 22
GUID_PREFIX_SIZE = GUID_SIZE - DIGITS

cdef enum:
    C_ANSWERS = 1
    C_HEARTBEATS = 2
    C_MESSAGES = 3
    C_HEAD = 16
    C_MARK = 8
    C_GUID = 22
    C_PREFIX = 10


cdef inline int64_t clock() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec


cdef inline int power(uint64_t v) noexcept nogil:
    """The highest bit that is set in ``v`` > 0."""
    cdef int e = 0
    while v > 1:
        v >>= 1
        e += 1
    return e


cdef class Delays:
    """How often each delay was seen, to 1/64 of it: memory does not grow with the number of
    messages.
    """

    def __cinit__(self):
        self.least = 0
        self.most = 0

    cdef void add(self, int64_t ns) noexcept nogil:
        cdef uint64_t v
        cdef int e
        if ns < 0:
            ns = 0
        v = <uint64_t>ns
        if v < 64:
            self.cells[v] += 1
        else:
            e = power(v)
            self.cells[(e - 5) * 64 + <int>((v >> (e - 6)) & 63)] += 1
        if self.count == 0 or ns < self.least:
            self.least = ns
        if ns > self.most:
            self.most = ns
        self.count += 1

    def observe(self, int64_t ns):
        """Count one delay of so many nanoseconds; below 0 counts as 0."""
        self.add(ns)

    def merge(self, Delays other not None):
        """Count what another has counted, too."""
        cdef int i
        if other.count == 0:
            return
        for i in range(CELLS):
            self.cells[i] += other.cells[i]
        if self.count == 0 or other.least < self.least:
            self.least = other.least
        if other.most > self.most:
            self.most = other.most
        self.count += other.count

    def below(self, double share):
        """Nanoseconds that ``share`` (0 to 1) of the messages did not exceed, to 1/64; 0 if there
        are none.
        """
        cdef uint64_t seen = 0
        cdef double wanted = share * <double>self.count
        cdef int i
        for i in range(CELLS):
            seen += self.cells[i]
            if self.cells[i] and <double>seen >= wanted:
                return min(max(upper(i), self.least), self.most)
        return self.most

    def counts(self):
        """``(nanoseconds, count)`` of every cell that is not empty, ascending; the time is the
        cell's upper end.
        """
        cdef int i
        return [(upper(i), self.cells[i]) for i in range(CELLS) if self.cells[i]]


cdef int64_t upper(int cell) noexcept nogil:
    cdef int e
    if cell < 64:
        return cell
    e = cell // 64 + 5
    return ((<int64_t>(64 + cell % 64) + 1) << (e - 6)) - 1


cdef class Traffic:
    """What both sides share. ``done`` of ``wanted`` messages are through; ``complaint``: what NATS
    said with -ERR.
    """

    def __cinit__(self):
        self.out = OutBuf()
        self.delays = Delays()
        self.answers = []
        self.complaint = b""
        self.kept = bytearray()

    def open(self, size_t max_payload):
        """The largest payload that NATS said it carries, in bytes."""
        self.max_payload = max_payload

    def feed(self, data not None):
        """Take what has arrived.

        It stops behind an answer, since what follows may need what the answer says; the rest is
        taken by the next call, also with nothing new. Raises ``WireError`` on a broken stream, and
        when an ack or a message cannot be decoded.
        """
        cdef Frame frame
        cdef const unsigned char[::1] view
        cdef const char* p
        cdef size_t pos = 0
        cdef size_t n
        cdef Py_ssize_t took = 0
        cdef Py_ssize_t answered = len(self.answers)
        cdef int64_t now = clock()
        self.kept += data
        n = <size_t>len(self.kept)
        if n == 0:
            return
        view = self.kept
        p = <const char*>&view[0]
        try:
            while pos < n and len(self.answers) == answered:
                took = next_frame(p + pos, n - pos, self.max_payload, &frame)
                if took <= 0:
                    break
                pos += <size_t>took
                if frame.kind == MSG and frame.sid == C_MESSAGES:
                    self.take(&frame, now)
                else:
                    self.control(&frame)
        finally:
            view = None
            del self.kept[:pos]
        if took < 0:
            raise WireError(f"not the NATS protocol: {bytes(self.kept[:64])!r}")

    cdef int take(self, Frame* frame, int64_t now) except -1:
        # Publishers take acks here and subscribers messages: there is no connection that is
        # neither.
        raise NotImplementedError

    cdef int control(self, Frame* frame) except -1:
        """What is no message of the load."""
        if frame.kind == PING:
            self.out.put(b"PONG\r\n", 6)
        elif frame.kind == ERR:
            self.complaint = PyBytes_FromStringAndSize(
                frame.payload.p, <Py_ssize_t>frame.payload.n
            ).strip()
        elif frame.kind == MSG and frame.sid == C_HEARTBEATS and frame.reply.n:
            self.out.pub(frame.reply, Span(frame.reply.p, 0), 0)
        elif (frame.kind == MSG or frame.kind == HMSG) and frame.sid == C_ANSWERS:
            self.answers.append(
                # With headers and nothing else NATS says that nobody listens.
                None if frame.kind == HMSG and frame.payload.n == 0
                else PyBytes_FromStringAndSize(frame.payload.p, <Py_ssize_t>frame.payload.n)
            )
        return 0


cdef class Publisher(Traffic):
    """Publishes ``wanted`` messages, and counts their acks.

    A message is sent when the one that is ``window`` before it is acknowledged or refused; so never
    more than ``window`` are under way.
    """

    def __cinit__(self):
        self.frame = bytearray()
        self.prefix = b""

    def __dealloc__(self):
        PyMem_RawFree(self.sent_at)

    def begin(
        self,
        bytes subject not None,
        bytes acks not None,
        *,
        bytes client_id not None,
        bytes conn_id not None,
        bytes channel not None,
        bytes guid_prefix not None,
        bytes mark not None,
        size_t size,
        uint64_t count,
        uint64_t window,
    ):
        """Say what to publish. ``guid_prefix``: 10 bytes of the publisher's own; ``mark``: 8 bytes
        of the run's own; ``size``: bytes of each message, at least 16.
        """
        cdef bytes guid
        cdef bytes data
        cdef bytes payload
        cdef OutBuf made = OutBuf()
        if len(guid_prefix) != C_PREFIX or len(mark) != C_MARK or size < C_HEAD or window < 1:
            raise ValueError(
                "a prefix of 10 bytes, a mark of 8, a size of 16 or more, a window of 1 or more"
            )
        guid = guid_prefix + b"0" * DIGITS
        data = b"\0" * C_MARK + mark + b"x" * (size - C_HEAD)
        payload = messages.encode(
            messages.PubMsg(
                client_id=client_id, guid=guid, subject=channel, data=data, conn_id=conn_id
            )
        )
        if <size_t>len(payload) > self.max_payload:
            raise WireError(
                f"messages of {size} bytes are {len(payload)} on the wire, "
                f"and this NATS server carries {self.max_payload}",
                hint="choose smaller ones",
            )
        made.publish(subject, acks, payload)
        self.frame = bytearray(made)
        # From the payload on: a subject might hold what a guid holds.
        self.guid_at = <size_t>self.frame.index(guid, len(self.frame) - len(payload) - 2)
        self.data_at = <size_t>self.frame.index(data, <Py_ssize_t>self.guid_at + C_GUID)
        self.prefix = guid_prefix
        self.wanted = count
        self.window = window
        self.sent_at = <int64_t*>PyMem_RawCalloc(window, sizeof(int64_t))
        if self.sent_at == NULL:
            raise MemoryError

    def fill(self, size_t most_bytes):
        """Write what the window allows, up to about ``most_bytes``; returns how many messages that
        are.
        """
        cdef uint64_t first = self.sent
        cdef uint64_t number
        cdef size_t n = <size_t>len(self.frame)
        cdef char* p
        cdef int64_t now
        cdef int i
        while (
            self.sent < self.wanted
            and self.sent_at[self.sent % self.window] == 0
            and self.out.used < most_bytes
        ):
            self.out.grow(n)
            p = self.out.buf + self.out.used
            memcpy(p, PyByteArray_AS_STRING(self.frame), n)
            number = self.sent
            for i in range(DIGITS):
                p[self.guid_at + C_GUID - 1 - i] = <char>(48 + number % 10)
                number //= 10
            now = clock()
            memcpy(p + self.data_at, &now, sizeof(now))
            self.sent_at[self.sent % self.window] = now
            self.out.used += n
            self.sent += 1
        return self.sent - first

    def stop(self):
        """Publish nothing more."""
        self.wanted = self.sent

    cdef int take(self, Frame* frame, int64_t now) except -1:
        """An ack: a guid, and why if it is a refusal."""
        cdef const char* p = frame.payload.p
        cdef const char* end = p + frame.payload.n
        cdef int field = 0
        cdef int wire_type = 0
        cdef Span guid
        cdef Span error
        cdef Span* target
        cdef uint64_t number = 0
        cdef int64_t* slot
        cdef int i
        guid.p = error.p = p
        guid.n = error.n = 0
        while p < end:
            p = get_tag(p, end, &field, &wire_type)
            if p != NULL:
                target = &guid if field == 1 else &error
                if field <= 2 and wire_type == BYTES_TYPE:
                    p = get_bytes(p, end, target)
                else:
                    p = skip_field(p, end, wire_type)
            if p == NULL:
                raise WireError("undecodable PubAck")
        if (
            self.sent == 0
            or guid.n != C_GUID
            or memcmp(guid.p, PyBytes_AS_STRING(self.prefix), C_PREFIX) != 0
        ):
            return 0
        for i in range(C_PREFIX, C_GUID):
            if guid.p[i] < 48 or guid.p[i] > 57:
                return 0
            number = number * 10 + <uint64_t>(guid.p[i] - 48)
        # Neither one that was never sent, nor one that was answered before.
        if number >= self.sent or number + self.window < self.sent:
            return 0
        slot = &self.sent_at[number % self.window]
        if slot[0] == 0:
            return 0
        if error.n:
            self.refused += 1
            if not self.refusal:
                self.refusal = PyBytes_FromStringAndSize(error.p, <Py_ssize_t>error.n)
        else:
            self.delays.add(now - slot[0])
        slot[0] = 0
        self.done += 1
        return 0


cdef class Subscriber(Traffic):
    """Acknowledges every message and counts those of the run, until ``wanted`` have come;
    ``again``: sent again.
    """

    def __cinit__(self):
        self.ack_inbox = self.channel = self.mark = b""

    def begin(
        self,
        bytes ack_inbox not None,
        bytes channel not None,
        *,
        bytes mark not None,
        uint64_t count,
    ):
        """Say what to wait for. ``mark``: that of the run's publishers; empty: whatever comes is
        counted.
        """
        if len(mark) not in (0, C_MARK):
            raise ValueError("a mark has 8 bytes")
        self.ack_inbox = ack_inbox
        self.channel = channel
        self.mark = mark
        self.wanted = count

    cdef int take(self, Frame* frame, int64_t now) except -1:
        cdef const char* p = frame.payload.p
        cdef const char* end = p + frame.payload.n
        cdef int field = 0
        cdef int wire_type = 0
        cdef uint64_t sequence = 0
        cdef uint64_t redelivered = 0
        cdef Span data
        cdef int64_t sent
        data.p = p
        data.n = 0
        while p < end:
            p = get_tag(p, end, &field, &wire_type)
            if p == NULL:
                pass
            elif field == 1 and wire_type == VARINT_TYPE:
                p = get_varint(p, end, &sequence)
            elif field == 4 and wire_type == BYTES_TYPE:
                p = get_bytes(p, end, &data)
            elif field == 6 and wire_type == VARINT_TYPE:
                p = get_varint(p, end, &redelivered)
            else:
                p = skip_field(p, end, wire_type)
            if p == NULL:
                raise WireError("undecodable MsgProto")
        if not self.ack_inbox:
            # Not begun: this is for somebody else.
            return 0
        self.acknowledge(sequence)
        if redelivered:
            # It came before: to this subscriber, or to another of the group.
            self.again += 1
        elif not self.mark:
            self.done += 1
        elif (
            data.n >= C_HEAD
            and memcmp(data.p + C_MARK, PyBytes_AS_STRING(self.mark), C_MARK) == 0
        ):
            memcpy(&sent, data.p, sizeof(sent))
            self.delays.add(now - sent)
            self.done += 1
        return 0

    cdef int acknowledge(self, uint64_t sequence) except -1:
        cdef Span to
        cdef Span none
        cdef size_t channel = <size_t>len(self.channel)
        cdef char* p
        to.p = PyBytes_AS_STRING(self.ack_inbox)
        to.n = <size_t>len(self.ack_inbox)
        none.p = to.p
        none.n = 0
        p = self.out.pub(to, none, field_size(channel) + 1 + varint_size(sequence))
        p = put_field(p, 0x0A, PyBytes_AS_STRING(self.channel), channel)
        p[0] = 0x10
        put_varint(p + 1, sequence)
        return 0
