"""TLS of clients until their handshake is over, and its end.

A step of a handshake may cost a millisecond, so there are only so many of them in a turn of the
loop; who says nothing costs nothing, and who only holds a place keeps nobody out.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free

from ftstan.front.connection cimport Connection
from ftstan.front.connections cimport READ
from ftstan.front.connections cimport Connections
from ftstan.front.kernel cimport (
    MSG_PEEK,
    front_acknowledge,
    front_address,
    front_ms,
    recv,
    snprintf,
    write,
)
from ftstan.front.queue cimport waiting
from ftstan.front.tls cimport (
    GREETING,
    OPEN,
    OVER,
    PLAIN,
    SHAKING,
    front_tls,
    front_tls_accept,
    front_tls_close,
    front_tls_shake,
)

cdef enum:
    #: With which a handshake begins, and that of a client so old that it is told so.
    HANDSHAKE = 0x16
    SSL_2 = 0x80


cdef class Handshakes(Connections):
    """Those whose handshake is under way, in the order in which they began."""

    cdef void _use_tls(self, front_tls* tls) noexcept nogil:
        """Take over what ``openssl.pyx`` has made, for those who come from now on; NULL: they speak
        plainly.
        """
        if self._tls.context != NULL:
            # Who has come with it keeps it.
            self._tls.drop_context(self._tls.context)
            self._tls.context = NULL
        if tls != NULL:
            self._tls = tls[0]
            free(tls)

    cdef void _greet(self, Connection* c) noexcept nogil:
        """All that waits for the client now goes out plainly; it has so long for its handshake."""
        c.tls = SHAKING
        c.shaking_before = self._newest_shaking
        if c.shaking_before != NULL:
            c.shaking_before.shaking_after = c
        else:
            self._oldest_shaking = c
        self._newest_shaking = c
        c.plain = waiting(&c.said)
        if c.until == 0:
            self._timed += 1
        c.until = front_ms() + self._tls.timeout

    cdef void _shake(self, Connection* c) noexcept nogil:
        """One step of a handshake."""
        cdef unsigned char[1] head
        cdef const char* reason = NULL
        cdef ssize_t got
        cdef int done
        if c.plain > 0 or self._steps == 0:
            # It is told of again.
            return
        if c.ssl == NULL:
            # Who says nothing costs nothing.
            got = recv(c.fd, head, 1, MSG_PEEK)
            if got < 0 and (errno == EAGAIN or errno == EINTR):
                return
            if got <= 0:
                self._client_left(c)
                return
            if head[0] != HANDSHAKE and head[0] != SSL_2:
                # A NATS server says nothing to it either. What is left unread would be a reset.
                recv(c.fd, self._scratch, READ, 0)
                self._tell_of_tls(c, b"the client does not speak TLS")
                self._end(c)
                return
            if self._tls.context != NULL:
                c.ssl = front_tls_accept(&self._tls, c.fd)
            if c.ssl == NULL:
                self._end(c)
                return
        self._steps -= 1
        done = front_tls_shake(&self._tls, c.ssl, &c.wants_write, &reason)
        if done < 0:
            self._tell_of_tls(c, reason)
            self._end(c)
        elif done > 0:
            self._be_shaken(c)
            c.tls = OPEN
            self.encrypted += 1
            # There is nothing to answer to the end of a handshake, and the client's kernel may keep
            # its next bytes until that has arrived.
            front_acknowledge(c.fd)
            # What came behind it may have been read with it.
            c.has_more = True
            if not c.is_up_gone:
                c.until = 0
                self._timed -= 1

    cdef void _be_shaken(self, Connection* c) noexcept nogil:
        """Its handshake is over, or will not be."""
        self._shaking -= 1
        if c.tls != SHAKING:
            return
        if c.shaking_before != NULL:
            c.shaking_before.shaking_after = c.shaking_after
        else:
            self._oldest_shaking = c.shaking_after
        if c.shaking_after != NULL:
            c.shaking_after.shaking_before = c.shaking_before
        else:
            self._newest_shaking = c.shaking_before

    cdef bint _make_room(self) noexcept nogil:
        """End the handshake that has had most time: who only holds its place keeps nobody out.
        False: all wait for the NATS server.
        """
        cdef Connection* c = self._oldest_shaking
        if c == NULL:
            return False
        self._tell_of_tls(c, b"too many handshakes at once")
        self._end(c)
        return True

    cdef void _leave_tls(self, Connection* c) noexcept nogil:
        if c.tls == GREETING or c.tls == SHAKING:
            self._be_shaken(c)
        elif c.tls == OPEN:
            self.encrypted -= 1
            if waiting(&c.said) == 0 and c.fd >= 0:
                front_tls_close(&self._tls, c.ssl)
        if c.ssl != NULL:
            self._tls.drop(c.ssl)
            c.ssl = NULL
        if c.tls != PLAIN:
            c.tls = OVER

    cdef void _tell_of_tls(self, Connection* c, const char* reason) noexcept nogil:
        """Why a handshake failed."""
        cdef char[160] line
        cdef char[64] address
        cdef int port = 0
        cdef int six = 0
        cdef int size
        self.not_shaken += 1
        if front_address(c.fd, 1, address, &port, &six):
            size = snprintf(line, sizeof(line), b"tls %s %d %.80s\n", address, port, reason)
            write(self._words, line, size)
