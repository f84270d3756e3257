"""The sockets of the thread between clients and the NATS server: one loop around ``epoll``, without
the GIL.

Every connection of a client has one of its own to the NATS server, and the core has a socket pair
whose other end is here. This file accepts, reads, writes and ends them; what the bytes say is for
``switch.pyx``. Nothing here ever waits for anything but ``epoll``, and no client can make it keep
more than its bounds. Python talks to the thread through a pipe (``listener.py``), and reads
numbers.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc

from ftstan.front.connection cimport FREE, Connection, Hold
from ftstan.front.kernel cimport (
    EPOLLERR,
    EPOLLHUP,
    EPOLLIN,
    EPOLLOUT,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLL_CTL_MOD,
    MSG_NOSIGNAL,
    MSG_PEEK,
    SHUT_WR,
    close,
    epoll_create1,
    epoll_event,
    epoll_wait,
    front_accept,
    front_acknowledge,
    front_address,
    front_connect,
    front_is_scarce,
    front_ms,
    front_proxy_line,
    front_watch,
    read,
    recv,
    send,
    shutdown,
    snprintf,
    write,
)
from ftstan.front.peer cimport PEER_STRANGE, PEER_UNKNOWN, front_peer
from ftstan.front.queue cimport Queue, drop, first, put, room, take, waiting
from ftstan.front.tls cimport (
    GREETING,
    OPEN,
    OVER,
    PLAIN,
    SHAKING,
    front_tls,
    front_tls_accept,
    front_tls_block_sigpipe,
    front_tls_close,
    front_tls_read,
    front_tls_shake,
    front_tls_write,
)

cdef enum:
    EVENTS = 256
    #: Bytes read at once.
    READ = 256 << 10
    #: Bytes that may wait for one end until the other end of the same connection is read no
    #: further.
    PASS_MOST = 1 << 20
    #: Descriptors that are never a client's: they are storage's, and those of a start of the NATS
    #: server (``monitor/listener.py`` keeps as many).
    RESERVE = 64
    #: How long what is left may take that is to be sent to who has been cut off (ms).
    LAST_WORDS = 10000
    #: Until a NATS server that was not there is tried again, and one that is accepting no more
    #: (ms).
    RETRY = 20
    #: Between two looks at connections that have nothing to do (ms).
    SWEEP = 1000
    #: Connections at once whose handshake is not over; for who comes then the oldest is ended.
    MOST_SHAKING = 1024
    #: Steps of handshakes between two looks at everybody else: one may cost a millisecond.
    MOST_STEPS = 4
    #: With which a handshake begins, and that of a client so old that it is told so.
    HANDSHAKE = 0x16
    SSL_2 = 0x80

#: What an event is about that is no connection's.
cdef enum:
    COMMANDS = 2
    CLIENTS = 4


cdef class Connections:
    """All of them. ``run`` is the thread; everything else is called by it, but for the numbers,
    which anybody may read.
    """

    def __cinit__(self, *, int commands, int words, long long max_pending, **_):
        """``commands``: the pipe that is read, ``words``: the one that is told of events."""
        self._listening = self._poll = -1
        self._scratch = <char*>malloc(READ)
        if self._scratch == NULL:
            raise MemoryError
        self._poll = epoll_create1(EPOLL_CLOEXEC)
        if self._poll < 0:
            raise OSError(errno, "epoll_create1")
        self._commands = commands
        self._words = words
        self._max_pending = max_pending
        front_watch(self._poll, EPOLL_CTL_ADD, commands, EPOLLIN, COMMANDS)

    def __dealloc__(self):
        # ``run`` has ended every connection.
        if self._listening >= 0:
            close(self._listening)
        if self._poll >= 0:
            close(self._poll)
        free(self._scratch)

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

    cdef void _forget_all(self, Connection* c) noexcept nogil:
        """Nothing is delivered to it any more."""

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

    cdef void _pause(self, bint on) noexcept nogil:
        """Take nobody who would be greeted now, and end those who are about to be."""
        cdef Connection* c = self._all
        cdef Connection* following
        self._is_paused = on
        while on and c != NULL:
            following = c.after
            if not c.is_core and not c.is_greeted:
                self._end(c)
            c = following

    # ---- connections

    cdef Connection* _new(self, int fd, int up) noexcept nogil:
        cdef Connection* c = <Connection*>calloc(1, sizeof(Connection))
        if c == NULL or front_watch(
            self._poll, EPOLL_CTL_ADD, fd, EPOLLIN, <uint64_t><uintptr_t>c
        ) < 0:
            free(c)
            close(fd)
            if up >= 0:
                close(up)
            return NULL
        c.fd = fd
        c.up = -1
        c.events = EPOLLIN
        c.after = self._all
        if c.after != NULL:
            c.after.before = c
        self._all = c
        if up >= 0:
            self._use_server(c, up)
        return c

    cdef void _use_server(self, Connection* c, int up) noexcept nogil:
        c.up = up
        c.events_up = EPOLLIN | EPOLLOUT
        front_watch(self._poll, EPOLL_CTL_ADD, up, c.events_up, <uint64_t><uintptr_t>c | 1)

    cdef void _accept(self) noexcept nogil:
        cdef Connection* c
        cdef char[128] line
        cdef int i
        cdef int fd
        if self._listening < 0:
            return
        if self._server_port == 0 or self._is_paused:
            # They wait in the kernel's queue, and cost nothing here.
            self._accept_later()
            return
        for i in range(64):
            if self._shaking >= MOST_SHAKING and not self._make_room():
                self._accept_later()
                return
            fd = front_accept(self._listening)
            if fd < 0:
                if errno != EAGAIN and errno != EINTR:
                    self._tell(b"full", -1)
                    self._accept_later()
                return
            if front_is_scarce(fd, 2 * self.connections, RESERVE):
                close(fd)
                self._tell(b"full", -1)
                continue
            c = self._new(fd, -1)
            if c == NULL:
                self._tell(b"full", -1)
                self._accept_later()
                return
            self.connections += 1
            if self._tls.context != NULL:
                c.tls = GREETING
                self._shaking += 1
                self._touch(c)
            put(&c.said_up, line, front_proxy_line(fd, line, sizeof(line)))
            self._connect(c)

    cdef void _accept_later(self) noexcept nogil:
        """Descriptors or memory are short, or there is no NATS server."""
        self._is_accepting = False
        self._accept_at = front_ms() + RETRY
        front_watch(self._poll, EPOLL_CTL_DEL, self._listening, 0, 0)

    cdef void _accept_again(self) noexcept nogil:
        self._is_accepting = True
        front_watch(self._poll, EPOLL_CTL_ADD, self._listening, EPOLLIN, CLIENTS)

    cdef void _connect(self, Connection* c) noexcept nogil:
        """Connect to the NATS server, or try again in a moment."""
        cdef int up = front_connect(self._server_port) if self._server_port > 0 else -1
        if up >= 0:
            self._use_server(c, up)
            self._touch(c)
        else:
            self._timed += 1
            c.until = front_ms() + RETRY

    cdef void _end(self, Connection* c) noexcept nogil:
        """It is over at once."""
        if c.is_dead:
            return
        c.is_dead = True
        self._let_go(c)
        if c.until != 0:
            self._timed -= 1
        self._close_client(c)
        if c.up >= 0:
            close(c.up)
        self._free(c)
        if c.is_core:
            if c == self._core:
                self._core = NULL
                # Nobody has to wait for it any more.
                self._may_resume = True
        else:
            self.connections -= 1
            self.passing -= c.is_passing
        if c.before != NULL:
            c.before.after = c.after
        else:
            self._all = c.after
        if c.after != NULL:
            c.after.before = c.before
        c.next_dead = self._dead
        self._dead = c

    cdef void _let_go(self, Connection* c) noexcept nogil:
        """Nothing more is delivered to it, and nothing of it is held."""
        self._forget_all(c)
        self._set_hold(c, FREE)

    cdef void _free(self, Connection* c) noexcept nogil:
        drop(&c.heard)
        drop(&c.said)
        drop(&c.heard_up)
        drop(&c.said_up)
        drop(&c.ended)
        drop(&c.hushed)
        drop(&c.late)

    cdef void _bury(self) noexcept nogil:
        cdef Connection* c = self._dead
        cdef Connection* following
        self._dead = NULL
        while c != NULL:
            following = c.next_dead
            if c.is_dirty or c.is_again:
                # It is in such a list still.
                c.next_dead = self._dead
                self._dead = c
            else:
                free(c)
            c = following

    cdef void _client_left(self, Connection* c) noexcept nogil:
        """It sends no more, and is not there: what it sent goes to the NATS server, which ends the
        other half.
        """
        if c.is_gone:
            return
        c.is_gone = True
        self._let_go(c)
        self._close_client(c)
        drop(&c.said)
        if not c.is_core:
            # It may have been held, with more to say.
            put(&c.said_up, first(&c.heard), waiting(&c.heard))
            drop(&c.heard)
        if c.up < 0 or c.is_up_gone:
            self._end(c)
        elif c.until == 0:
            self._timed += 1
            c.until = front_ms() + LAST_WORDS
        if c == self._core:
            self._core = NULL
            self._may_resume = True

    cdef void _server_left(self, Connection* c) noexcept nogil:
        """The NATS server has ended it: the client gets what it said, and is left."""
        if c.is_up_gone:
            return
        c.is_up_gone = True
        self._let_go(c)
        close(c.up)
        c.up = -1
        drop(&c.said_up)
        if c.tls == GREETING:
            # It says why it does not greet.
            c.plain = waiting(&c.said)
        if c == self._core:
            self._core = NULL
            self._may_resume = True
        if c.is_gone or waiting(&c.said) == 0:
            self._end(c)
        elif c.until == 0:
            self._timed += 1
            c.until = front_ms() + LAST_WORDS

    cdef void _cut(self, Connection* c) noexcept nogil:
        """A client that does not read what it asked for."""
        if c.is_cut:
            return
        # Its subscriptions go when it is ended: some of them may just have been found.
        c.is_cut = True
        self.slow += 1
        self._tell(b"slow", c.fd)

    cdef void _tell(self, const char* what, int fd) noexcept nogil:
        """A line for the log. One that finds no room is left out."""
        cdef char[160] line
        cdef char[64] address
        cdef int port = 0
        cdef int six = 0
        address[0] = 0
        if fd < 0 or not front_address(fd, 1, address, &port, &six):
            port = 0
        write(self._words, line, snprintf(line, sizeof(line), b"%s %s %d\n", what, address, port))

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

    cdef void _set_hold(self, Connection* c, Hold hold) noexcept nogil:
        if c.hold == FREE and hold != FREE:
            self._held += 1
        elif c.hold != FREE and hold == FREE:
            self._held -= 1
        c.hold = hold

    # ---- TLS

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

    cdef void _close_client(self, Connection* c) noexcept nogil:
        self._leave_tls(c)
        if c.fd >= 0:
            close(c.fd)
            c.fd = -1

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

    # ---- events

    cdef void _touch(self, Connection* c) noexcept nogil:
        """There may be something to send, or something else to wait for."""
        if not c.is_dirty:
            c.is_dirty = True
            c.next_dirty = self._dirty
            self._dirty = c

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
                used = self._from_server(c, first(&c.heard_up), waiting(&c.heard_up))
                if not c.is_dead:
                    take(&c.heard_up, used)
                return
        self._hear_nothing(c, got)

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
            if c.is_core and waiting(&c.said) <= CORE_MOST // 2:
                self._may_resume = True
        if c.is_up_gone and waiting(&c.said) == 0:
            self._end(c)

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
            # more than it may keep waiting the NATS server ends the connection.
            if waiting(&c.said) < (self._max_pending if c.is_core else PASS_MOST):
                events |= EPOLLIN
            if waiting(&c.said_up) > 0:
                events |= EPOLLOUT
            if events != c.events_up:
                c.events_up = events
                front_watch(
                    self._poll, EPOLL_CTL_MOD, c.up, events, <uint64_t><uintptr_t>c | 1
                )

    cdef void _sweep(self, int64_t now) noexcept nogil:
        """What has had its time, and memory that nobody needs."""
        cdef Connection* c = self._all
        cdef Connection* following
        cdef bint is_second = now >= self._sweep_at
        self._timed_at = now + RETRY
        if is_second:
            self._sweep_at = now + SWEEP
        while c != NULL:
            following = c.after
            if is_second:
                shrink(&c.heard)
                shrink(&c.said)
                shrink(&c.heard_up)
                shrink(&c.said_up)
                shrink(&c.ended)
                shrink(&c.hushed)
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
