"""Who is connected to the thread between clients and the NATS server: how connections come, and how
they end.

Every connection of a client has one of its own to the NATS server, and the core has a socket pair
whose other end is here. Nothing here ever waits, and no client can make it keep more than its
bounds. When they are read and written is for ``loop.pyx``, what the bytes say for ``switch.pyx``.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc

from ftstan.front.connection cimport CORE_ROOM, FREE, Connection, Hold
from ftstan.front.kernel cimport (
    EPOLLIN,
    EPOLLOUT,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    close,
    epoll_create1,
    front_accept,
    front_address,
    front_connect,
    front_is_scarce,
    front_ms,
    front_proxy_line,
    front_watch,
    snprintf,
    write,
)
from ftstan.front.queue cimport drop, first, put, waiting
from ftstan.front.tls cimport GREETING

cdef enum:
    #: Descriptors that are never a client's: they are storage's, and those of a start of the NATS
    #: server (``monitor/listener.py`` keeps as many).
    RESERVE = 64
    #: How long what is left may take that is to be sent to who has been cut off (ms).
    LAST_WORDS = 10000
    #: Connections at once whose handshake is not over; for who comes then the oldest is ended.
    MOST_SHAKING = 1024


cdef class Connections:
    """All of them."""

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
        self._core_room = CORE_MOST
        front_watch(self._poll, EPOLL_CTL_ADD, commands, EPOLLIN, COMMANDS)

    def __dealloc__(self):
        # ``run`` has ended every connection.
        if self._listening >= 0:
            close(self._listening)
        if self._poll >= 0:
            close(self._poll)
        free(self._scratch)

    cdef void _forget_all(self, Connection* c) noexcept nogil:
        """Nothing is delivered to it any more."""

    cdef bint _make_room(self) noexcept nogil:
        """End a handshake for who comes now; false: there is none that could be."""
        return False

    cdef void _leave_tls(self, Connection* c) noexcept nogil:
        """It has no TLS any more."""

    # ---- clients that come

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
        if c == self._core:
            self._wait_with_passed(False)

    cdef void _free(self, Connection* c) noexcept nogil:
        drop(&c.heard)
        drop(&c.said)
        drop(&c.heard_up)
        drop(&c.said_up)
        drop(&c.ended)
        drop(&c.hushed)
        drop(&c.catch_ups)
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

    cdef void _close_client(self, Connection* c) noexcept nogil:
        self._leave_tls(c)
        if c.fd >= 0:
            close(c.fd)
            c.fd = -1

    cdef void _cut(self, Connection* c) noexcept nogil:
        """A client that does not read what it asked for."""
        if c.is_cut:
            return
        # Its subscriptions go when it is ended: some of them may just have been found.
        c.is_cut = True
        self.slow += 1
        self._tell(b"slow", c.fd)

    # ---- what holds for one

    cdef void _set_hold(self, Connection* c, Hold hold) noexcept nogil:
        if c.hold == FREE and hold != FREE:
            self._held += 1
        elif c.hold != FREE and hold == FREE:
            self._held -= 1
        if hold == CORE_ROOM and c.hold != CORE_ROOM:
            self._held_for_room += 1
            c.held_before = self._held_last
            c.held_after = NULL
            if self._held_last != NULL:
                self._held_last.held_after = c
            else:
                self._held_first = c
            self._held_last = c
        elif c.hold == CORE_ROOM and hold != CORE_ROOM:
            self._held_for_room -= 1
            if c.held_before != NULL:
                c.held_before.held_after = c.held_after
            else:
                self._held_first = c.held_after
            if c.held_after != NULL:
                c.held_after.held_before = c.held_before
            else:
                self._held_last = c.held_before
        c.hold = hold

    cdef void _wait_with_passed(self, bint on) noexcept nogil:
        """Whether what the NATS server has for the core waits as clients do that are held."""
        if on == self._passed_waits:
            return
        self._passed_waits = on
        if on:
            self._held += 1
            self._held_for_room += 1
        else:
            self._held -= 1
            self._held_for_room -= 1

    cdef void _touch(self, Connection* c) noexcept nogil:
        """There may be something to send, or something else to wait for."""
        if not c.is_dirty:
            c.is_dirty = True
            c.next_dirty = self._dirty
            self._dirty = c

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
