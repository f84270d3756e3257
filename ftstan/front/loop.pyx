"""The thread between clients and the NATS server: one loop around ``epoll``, without the GIL.

It reads and writes whatever can be; what the bytes say is for ``switch.pyx``. Nothing here ever
waits for anything but ``epoll``. Python talks to the thread through a pipe (``listener.py``), and
reads numbers.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from ftstan.front.connection cimport FREE, Connection
from ftstan.front.connections cimport CLIENTS, COMMANDS, CORE_MOST, READ, RETRY, Command
from ftstan.front.handshakes cimport Handshakes
from ftstan.front.kernel cimport (
    EPOLLERR,
    EPOLLHUP,
    EPOLLIN,
    EPOLLOUT,
    EPOLLRDHUP,
    EPOLL_CTL_MOD,
    MSG_NOSIGNAL,
    MSG_PEEK,
    SHUT_WR,
    close,
    epoll_event,
    epoll_wait,
    front_ms,
    front_watch,
    read,
    recv,
    send,
    shutdown,
)
from ftstan.front.peer cimport PEER_STRANGE, PEER_UNKNOWN, front_peer
from ftstan.front.queue cimport Queue, drop, first, put, room, take, waiting
from ftstan.front.tls cimport (
    GREETING,
    OPEN,
    PLAIN,
    SHAKING,
    front_tls,
    front_tls_block_sigpipe,
    front_tls_read,
    front_tls_write,
)

cdef enum:
    EVENTS = 256
    #: Bytes that may wait for one end until the other end of the same connection is read no
    #: further.
    PASS_MOST = 1 << 20
    #: Between two looks at connections that have nothing to do (ms).
    SWEEP = 1000
    #: Steps of handshakes between two looks at everybody else: one may cost a millisecond.
    MOST_STEPS = 4


cdef class Loop(Handshakes):
    """``run`` is the thread; everything else is called by it, but for the numbers, which anybody
    may read.
    """

    def run(self) -> None:
        """Serve until the command to stop."""
        with nogil:
            front_tls_block_sigpipe()
            while not self._is_over:
                self._turn()
            while self._all != NULL:
                self._end(self._all)
            self._flush()
            self._bury()
            if self._listening >= 0:
                close(self._listening)
                self._listening = -1
            self._use_tls(NULL)

    cdef void _turn(self) noexcept nogil:
        cdef epoll_event[EVENTS] events
        cdef int i
        cdef int count
        cdef uint64_t data
        cdef Connection* c
        cdef int64_t now
        cdef int patience = SWEEP if self._all != NULL else -1
        if self._timed > 0 or (self._listening >= 0 and not self._is_accepting):
            patience = RETRY
        if self._again != NULL or (self._held > 0 and self._may_resume):
            patience = 0
        self._steps = MOST_STEPS
        count = epoll_wait(self._poll, events, EVENTS, patience)
        for i in range(count):
            data = events[i].data.u64
            if data == COMMANDS:
                self._obey()
            elif data == CLIENTS:
                self._accept()
            else:
                c = <Connection*><uintptr_t>(data & ~<uint64_t>1)
                if c.is_dead:
                    continue
                if data & 1:
                    if events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                        self._read_server(c)
                    elif events[i].events & EPOLLRDHUP:
                        self._judge_no_more(c)
                elif events[i].events & (EPOLLERR | EPOLLHUP) or (
                    (c.wants_write or events[i].events & EPOLLIN)
                    and c.is_greeted
                    and (c.tls != OPEN or is_read(c))
                ):
                    self._read_client(c)
                self._touch(c)
        if self._again != NULL:
            self._read_again()
        if self._held > 0 and self._may_resume:
            self._resume()
        self._flush()
        now = front_ms()
        if now >= self._sweep_at or (self._timed > 0 and now >= self._timed_at):
            self._sweep(now)
        if self._listening >= 0 and not self._is_accepting and now >= self._accept_at:
            self._accept_again()
        self._bury()

    # ---- what a kind of listener does

    cdef size_t _from_client(self, Connection* c, const char* data, size_t size) noexcept nogil:
        """Use what a client, or the core, has sent; returns how much of it."""
        return size

    cdef size_t _from_server(self, Connection* c, const char* data, size_t size) noexcept nogil:
        """Use what the NATS server has sent; returns how much of it."""
        return size

    cdef void _judge_no_more(self, Connection* c) noexcept nogil:
        """The NATS server has ended it, behind more than the client reads: what it says from now on
        is for nobody else.
        """

    cdef void _resume(self) noexcept nogil:
        """Read on where there is nothing to wait for any more."""

    cdef void _carry_out(self, Command* command) noexcept nogil:
        """A command that is not about sockets."""

    # ---- commands

    cdef void _obey(self) noexcept nogil:
        cdef Command command
        while read(self._commands, &command, sizeof(Command)) == sizeof(Command):
            if command.what == c'L':
                self._listening = command.number
                self._accept_again()
            elif command.what == c'S':
                self._server_port = command.number
            elif command.what == c'P':
                self._pause(command.number != 0)
            elif command.what == c'N':
                if self._listening >= 0:
                    # Closing takes it out of the poll.
                    close(self._listening)
                    self._listening = -1
            elif command.what == c'T':
                self._use_tls(<front_tls*><uintptr_t>command.place)
            elif command.what == c'Q':
                self._is_over = True
            else:
                self._carry_out(&command)
            self.obeyed += 1

    # ---- reading

    cdef void _read_again(self) noexcept nogil:
        """Read what the kernel does not tell of: it has been read already, and not used."""
        cdef Connection* c = self._again
        cdef Connection* following
        self._again = NULL
        while c != NULL:
            following = c.next_again
            c.is_again = False
            if not c.is_dead and c.has_more and is_read(c):
                self._read_client(c)
                self._touch(c)
            c = following

    cdef ssize_t _receive(self, Connection* c, char* place) noexcept nogil:
        """As ``recv``, of what the client means."""
        if c.tls == PLAIN:
            return recv(c.fd, place, READ, 0)
        return front_tls_read(&self._tls, c.ssl, place, READ, &c.has_more, &c.wants_write)

    cdef void _read_client(self, Connection* c) noexcept nogil:
        cdef ssize_t got
        cdef size_t used
        cdef char* place
        if c.is_gone or c.fd < 0:
            return
        if c.tls == SHAKING:
            self._shake(c)
            return
        if c.tls == GREETING or not c.is_greeted:
            # It is not read yet: this is its end, whatever it has said before.
            self._end(c)
            return
        if c.is_up_gone or c.is_cut:
            # Nobody wants to know: only whether it is there.
            c.has_more = c.wants_write = False
            got = recv(c.fd, self._scratch, READ, 0)
            if got == 0 or (got < 0 and errno != EAGAIN and errno != EINTR):
                self._end(c)
            return
        if waiting(&c.heard) == 0:
            got = self._receive(c, self._scratch)
            if got > 0:
                used = self._from_client(c, self._scratch, got)
                if not c.is_dead and used < <size_t>got and not put(
                    &c.heard, self._scratch + used, got - used
                ):
                    self._end(c)
                return
        else:
            place = room(&c.heard, READ)
            if place == NULL:
                self._end(c)
                return
            got = self._receive(c, place)
            if got > 0:
                c.heard.end += got
                self._go_on(c)
                return
        if got == 0 or (errno != EAGAIN and errno != EINTR):
            self._client_left(c)

    cdef void _go_on(self, Connection* c) noexcept nogil:
        """Use what was heard before."""
        cdef size_t used = self._from_client(c, first(&c.heard), waiting(&c.heard))
        if not c.is_dead:
            take(&c.heard, used)

    cdef void _read_server(self, Connection* c) noexcept nogil:
        cdef ssize_t got
        cdef int whose
        cdef size_t used
        cdef char* place
        if c.up < 0:
            return
        if not c.is_greeted:
            got = recv(c.up, self._scratch, 1, MSG_PEEK)
            if got <= 0:
                # An error is told once.
                self._hear_nothing(c, got)
                return
            whose = front_peer(c.up)
            if whose == PEER_STRANGE:
                # Nothing has been said to it but whose connection it is.
                self._tell(b"stranger", c.up)
                self._end(c)
                return
            if whose == PEER_UNKNOWN and not self._is_unseen:
                self._is_unseen = True
                self._tell(b"unseen", -1)
            c.is_greeted = True
        if waiting(&c.heard_up) == 0:
            got = recv(c.up, self._scratch, READ, 0)
            if got > 0:
                used = self._from_server(c, self._scratch, got)
                if not c.is_dead and used < <size_t>got and not put(
                    &c.heard_up, self._scratch + used, got - used
                ):
                    self._end(c)
                return
        else:
            place = room(&c.heard_up, READ)
            if place == NULL:
                self._end(c)
                return
            got = recv(c.up, place, READ, 0)
            if got > 0:
                c.heard_up.end += got
                self._hear_on(c)
                return
        self._hear_nothing(c, got)

    cdef void _hear_on(self, Connection* c) noexcept nogil:
        """Use what the NATS server has sent before."""
        cdef size_t used = self._from_server(c, first(&c.heard_up), waiting(&c.heard_up))
        if not c.is_dead:
            take(&c.heard_up, used)

    cdef void _hear_nothing(self, Connection* c, ssize_t got) noexcept nogil:
        """Reading from the NATS server gave 0 or -1; ``errno`` is of that."""
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return
        if not c.is_core and not c.has_sent:
            # It was not there, which sending may have been told, and reading not any more; what the
            # client says waits, and whose connection it is.
            close(c.up)
            c.up = -1
            if c.is_gone:
                self._end(c)
            elif c.until == 0:
                self._timed += 1
                c.until = front_ms() + RETRY
            return
        if c == self._core:
            self._is_last_word = True
            self._hear_on(c)
            self._is_last_word = False
            if c.is_dead:
                return
        self._server_left(c)

    # ---- sending

    cdef void _flush(self) noexcept nogil:
        """Send what there is to send, and say what to wait for."""
        cdef Connection* c
        while self._dirty != NULL:
            c = self._dirty
            self._dirty = c.next_dirty
            c.is_dirty = False
            if not c.is_dead:
                self._send_all(c)
            if not c.is_dead:
                self._await(c)

    cdef void _send_all(self, Connection* c) noexcept nogil:
        cdef size_t before = waiting(&c.said_up)
        if c.up >= 0 and before > 0 and not c.is_cut:
            if not self._send(c.up, &c.said_up) and c.has_sent:
                # Its reason is in what is still to be read.
                drop(&c.said_up)
            c.has_sent |= waiting(&c.said_up) < before
        if c.is_gone:
            if c.up >= 0 and waiting(&c.said_up) == 0:
                shutdown(c.up, SHUT_WR)
            return
        if c.is_cut:
            self._end(c)
            return
        if c.fd >= 0 and waiting(&c.said) > 0:
            if not self._send_client(c):
                self._client_left(c)
                return
            if c.is_core and waiting(&c.said) <= self._core_room // 2:
                self._drained += 1
                self._drained_at = front_ms()
                self._may_resume = True
        if c.is_up_gone and waiting(&c.said) == 0:
            self._end(c)

    cdef bint _send_client(self, Connection* c) noexcept nogil:
        """Send what is taken now; false: nobody is there."""
        cdef ssize_t sent
        if c.tls == PLAIN:
            return self._send(c.fd, &c.said)
        while c.plain > 0:
            sent = send(c.fd, first(&c.said), c.plain, MSG_NOSIGNAL)
            if sent < 0:
                return errno == EAGAIN or errno == EINTR
            take(&c.said, sent)
            c.plain -= sent
        while c.tls == OPEN and waiting(&c.said) > 0:
            sent = front_tls_write(
                &self._tls, c.ssl, first(&c.said), waiting(&c.said), &c.wants_read
            )
            if sent < 0:
                return errno == EAGAIN
            take(&c.said, sent)
        return True

    cdef bint _send(self, int fd, Queue* queue) noexcept nogil:
        """Send what is taken now; false: nobody is there."""
        cdef ssize_t sent
        while waiting(queue) > 0:
            sent = send(fd, first(queue), waiting(queue), MSG_NOSIGNAL)
            if sent < 0:
                return errno == EAGAIN or errno == EINTR
            take(queue, sent)
        return True

    cdef void _await(self, Connection* c) noexcept nogil:
        cdef uint32_t events = 0
        if c.fd >= 0:
            if c.tls == GREETING or c.tls == SHAKING:
                if c.plain > 0 or c.wants_write:
                    events |= EPOLLOUT
                elif c.tls == SHAKING:
                    events |= EPOLLIN
            else:
                if is_read(c):
                    events |= EPOLLIN
                    if c.wants_write:
                        events |= EPOLLOUT
                    if c.has_more and not c.is_again:
                        c.is_again = True
                        c.next_again = self._again
                        self._again = c
                if waiting(&c.said) > 0:
                    events |= EPOLLIN if c.wants_read else EPOLLOUT
            if events != c.events:
                c.events = events
                front_watch(
                    self._poll, EPOLL_CTL_MOD, c.fd, events, <uint64_t><uintptr_t>c
                )
        if c.up >= 0:
            events = 0
            # What waits for the core keeps nobody from hearing what the NATS server answers; for
            # more than it may keep waiting the NATS server ends the connection. What comes directly
            # waits there as well.
            if waiting(&c.said) + (waiting(&c.heard_up) if c.is_core else 0) < (
                CORE_MOST + self._max_pending if c.is_core else PASS_MOST
            ):
                events |= EPOLLIN
            elif not c.is_core and not c.is_raw:
                events |= EPOLLRDHUP
            if waiting(&c.said_up) > 0:
                events |= EPOLLOUT
            if events != c.events_up:
                c.events_up = events
                front_watch(
                    self._poll, EPOLL_CTL_MOD, c.up, events, <uint64_t><uintptr_t>c | 1
                )

    # ---- time

    cdef void _sweep(self, int64_t now) noexcept nogil:
        """What has had its time, and memory that nobody needs."""
        cdef Connection* c = self._all
        cdef Connection* following
        cdef bint is_second = now >= self._sweep_at
        self._timed_at = now + RETRY
        if is_second:
            self._sweep_at = now + SWEEP
            self._may_resume |= self._passed_waits
        while c != NULL:
            following = c.after
            if is_second:
                c.quiet += 1
                shrink(&c.heard)
                shrink(&c.said)
                shrink(&c.heard_up)
                shrink(&c.said_up)
                shrink(&c.ended)
                shrink(&c.hushed)
                shrink(&c.catch_ups)
                shrink(&c.late)
            if c.until != 0 and now >= c.until:
                c.until = 0
                self._timed -= 1
                if c.tls == SHAKING and c.fd >= 0:
                    self._tell_of_tls(c, b"timeout")
                if c.up < 0 and not c.is_gone and not c.is_up_gone:
                    self._connect(c)
                else:
                    self._end(c)
            c = following


cdef inline void shrink(Queue* queue) noexcept nogil:
    if queue.size > 0 and waiting(queue) == 0:
        drop(queue)


cdef inline bint is_read(const Connection* c) noexcept nogil:
    """Whether more is wanted of the client."""
    return c.is_greeted and c.hold == FREE and waiting(&c.said_up) < PASS_MOST
