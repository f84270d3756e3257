"""The thread between clients and the NATS server: one loop around ``epoll``, without the GIL.

Every connection of a client has one of its own to the NATS server, and the core has a socket pair
whose other end is here. What passes is handed on in whole lines and messages, so that a line of
ours can be put between two of them at any time.

Order is kept although there are two roads. What one connection sends first through the NATS server
and then directly could arrive the other way round; before the road changes in this direction, the
NATS server is asked (PING) on the connection by which the former went, and on the one by which it
comes, and the connection is not read until both have answered. The other direction needs nothing.
The core does not publish what it subscribes to, nor with headers.
The core does not publish what it subscribes to.
A message for the core that others here want as well goes through the NATS server, which
gives it to all of them.

Python talks to the thread through a pipe (``listener.py``), and reads numbers.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from ftstan.front.connection cimport (
    ACCEPTANCE,
    CORE_FENCE,
    CORE_ROOM,
    FENCE,
    FREE,
    REMEMBERED,
    Connection,
    Hold,
)
from ftstan.front.interest cimport Interest, Owner, Subscription, is_subject
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
    SHUT_WR,
    close,
    epoll_create1,
    epoll_event,
    epoll_wait,
    front_accept,
    front_address,
    front_connect,
    front_find,
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
from ftstan.front.lines cimport (
    CONNECT,
    HEADED,
    INFO,
    MESSAGE,
    PARTIAL,
    PING,
    PONG,
    SUB,
    UNSUB,
    WRONG,
    Line,
    read_client_line,
    read_server_line,
)
from ftstan.front.queue cimport Queue, drop, first, put, room, take, waiting

cdef enum:
    EVENTS = 256
    #: Bytes read at once.
    READ = 256 << 10
    #: Bytes that may wait for the core until clients are read no further; below a half they are.
    CORE_MOST = 4 << 20
    #: Bytes that may wait for one end until the other end of the same connection is read no
    #: further.
    PASS_MOST = 1 << 20
    #: Subscriptions that are looked at for one message.
    MOST_STEPS = 4096
    #: Members of queue groups among which one message looks for its own.
    MOST_QUEUED = 64
    #: Of a line that has no end yet, beside its words.
    ROOM_FOR_BLANKS = 1024
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

#: What an event is about that is no connection's.
cdef enum:
    COMMANDS = 2
    CLIENTS = 4


#: What ``listener.py`` writes: a letter and what belongs to it.
cdef struct Command:
    char what
    int number
    int other


cdef class Switch:
    """The state of the thread. ``run`` is the thread; everything else is called by it, but for the
    numbers, which anybody may read.
    """

    #: What clients subscribe to, and the core.
    cdef Interest _interest
    cdef Interest _core_interest
    cdef int _poll
    cdef int _commands
    cdef int _words
    cdef int _listening
    cdef int _server_port
    cdef bint _is_on
    cdef bint _is_forbidden
    cdef bint _is_over
    cdef bint _is_accepting
    cdef int64_t _accept_at
    cdef int64_t _sweep_at
    cdef int64_t _timed_at
    cdef Connection* _core
    cdef Connection* _all
    cdef Connection* _dirty
    cdef Connection* _dead
    #: How many connections are held, and whether it is time to look at them.
    cdef size_t _held
    cdef bint _may_resume
    #: Connections that have no server yet, or that end.
    cdef size_t _timed
    cdef char* _scratch
    cdef size_t _max_line
    cdef size_t _max_payload
    cdef size_t _max_pending
    #: The core's subscriptions so far, one more.
    cdef uint64_t _core_number
    #: Messages of the core that went through the NATS server; those it has certainly read.
    cdef uint64_t _core_passed
    cdef uint64_t _core_read
    cdef uint64_t _core_asked
    #: Tickets for the answer to a PING on the core's connection: given out, asked for, answered.
    cdef uint64_t _tickets
    cdef uint64_t _tickets_asked
    cdef uint64_t _tickets_done
    cdef uint32_t _random
    cdef readonly uint64_t connections
    cdef readonly uint64_t passing
    cdef readonly uint64_t direct_in
    cdef readonly uint64_t direct_out
    cdef readonly uint64_t passed_in
    cdef readonly uint64_t passed_out
    cdef readonly uint64_t slow

    def __cinit__(self, *, int commands, int words, int max_line, long long max_pending):
        """``commands``: the pipe that is read, ``words``: the one that is told of events."""
        self._interest = Interest()
        self._core_interest = Interest()
        self._scratch = <char*>malloc(READ)
        if self._scratch == NULL:
            raise MemoryError
        self._poll = epoll_create1(EPOLL_CLOEXEC)
        if self._poll < 0:
            raise OSError(errno, "epoll_create1")
        self._commands = commands
        self._words = words
        self._listening = -1
        self._max_line = max_line
        self._max_payload = 1 << 20
        self._max_pending = max_pending
        self._core_number = 1
        self._random = 2463534242
        front_watch(self._poll, EPOLL_CTL_ADD, commands, EPOLLIN, COMMANDS)

    def __dealloc__(self):
        while self._all != NULL:
            self._end(self._all)
        self._bury()
        if self._listening >= 0:
            close(self._listening)
        if self._poll >= 0:
            close(self._poll)
        free(self._scratch)

    def run(self) -> None:
        """Serve until the command to stop."""
        with nogil:
            while not self._is_over:
                self._turn()
            while self._all != NULL:
                self._end(self._all)
            self._bury()
            if self._listening >= 0:
                close(self._listening)
                self._listening = -1

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
        if self._held > 0 and self._may_resume:
            patience = 0
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
                elif events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                    self._read_client(c)
                self._touch(c)
        if self._held > 0 and self._may_resume:
            self._resume()
        self._flush()
        now = front_ms()
        if now >= self._sweep_at or (self._timed > 0 and now >= self._timed_at):
            self._sweep(now)
        if self._listening >= 0 and not self._is_accepting and now >= self._accept_at:
            self._accept_again()
        self._bury()

    # ---- commands

    cdef void _obey(self) noexcept nogil:
        cdef Command command
        while read(self._commands, &command, sizeof(Command)) == sizeof(Command):
            if command.what == c'L':
                self._listening = command.number
                self._accept_again()
            elif command.what == c'S':
                self._server_port = command.number
            elif command.what == c'C':
                self._attach(command.number, command.other)
            elif command.what == c'D':
                self._is_on = command.number != 0
                self._may_resume = True
            elif command.what == c'F':
                self._is_forbidden = True
                self._may_resume = True
            elif command.what == c'N':
                if self._listening >= 0:
                    # Closing takes it out of the poll.
                    close(self._listening)
                    self._listening = -1
            elif command.what == c'Q':
                self._is_over = True

    cdef void _attach(self, int fd, int up) noexcept nogil:
        """The core has connected: ``fd`` is our end of its socket pair, ``up`` its connection to
        the NATS server.
        """
        cdef Connection* c
        if self._core != NULL:
            self._end(self._core)
        c = self._new(fd, up)
        if c == NULL:
            return
        c.is_core = True
        self._core = c
        # Whoever waited for the former waits for nothing.
        self._tickets_asked = self._tickets_done = self._tickets
        self._core_asked = self._core_read = self._core_passed
        self._may_resume = True
        self._touch(c)

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
        if self._server_port == 0:
            # They wait in the kernel's queue, and cost nothing here.
            self._accept_later()
            return
        for i in range(64):
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
        if c.fd >= 0:
            close(c.fd)
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

    cdef void _bury(self) noexcept nogil:
        cdef Connection* c = self._dead
        cdef Connection* following
        self._dead = NULL
        while c != NULL:
            following = c.next_dead
            if c.is_dirty:
                # It is in that list still.
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
        close(c.fd)
        c.fd = -1
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
        if c.is_up_gone or c.is_cut:
            # Nobody wants to know: only whether it is there.
            got = recv(c.fd, self._scratch, READ, 0)
            if got == 0 or (got < 0 and errno != EAGAIN and errno != EINTR):
                self._end(c)
            return
        if waiting(&c.heard) == 0:
            got = recv(c.fd, self._scratch, READ, 0)
            if got > 0:
                used = self._take(c, self._scratch, got)
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
            got = recv(c.fd, place, READ, 0)
            if got > 0:
                c.heard.end += got
                self._go_on(c)
                return
        if got == 0 or (errno != EAGAIN and errno != EINTR):
            self._client_left(c)

    cdef void _go_on(self, Connection* c) noexcept nogil:
        """Use what was heard before."""
        cdef size_t used = self._take(c, first(&c.heard), waiting(&c.heard))
        if not c.is_dead:
            take(&c.heard, used)

    cdef size_t _take(self, Connection* c, const char* data, size_t size) noexcept nogil:
        if c.is_core:
            return self._from_core(c, data, size)
        return self._from_client(c, data, size)

    cdef void _read_server(self, Connection* c) noexcept nogil:
        cdef ssize_t got
        cdef size_t used
        cdef char* place
        if c.up < 0:
            return
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
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return
        if got < 0 and not c.is_core and not c.has_sent:
            # It was not there; what the client says waits, and whose connection it is.
            close(c.up)
            c.up = -1
            if c.is_gone:
                self._end(c)
            elif c.until == 0:
                self._timed += 1
                c.until = front_ms() + RETRY
            return
        self._server_left(c)

    # ---- from the core

    cdef size_t _from_core(self, Connection* c, const char* data, size_t size) noexcept nogil:
        """Use what the core has sent; returns how much of it."""
        cdef Line line
        cdef Subscription* ended
        cdef size_t used = 0
        #: From where nothing has been handed on yet.
        cdef size_t kept = 0
        cdef size_t whole
        while used < size:
            read_client_line(data + used, size - used, &line)
            if line.kind == PARTIAL:
                break
            if line.kind == WRONG:
                # The NATS server will say so.
                used = size
                break
            whole = line.size
            if line.kind == MESSAGE or line.kind == HEADED:
                whole += line.number + 2
                if size - used < whole:
                    break
            if line.kind == MESSAGE and self._deliver(
                &line, data + used + line.size, line.number + 2
            ):
                if not self._pass(c, data + kept, used - kept):
                    return size
                used += whole
                kept = used
                continue
            if line.kind == MESSAGE or line.kind == HEADED:
                self._core_passed += 1
            elif line.kind == SUB:
                self._core_number += 1
                self._subscribe(c, &line)
                if c.is_dead:
                    return size
            elif line.kind == UNSUB:
                ended = self._unsubscribe(c, &line)
                if ended != NULL:
                    self._forget(c, ended)
            elif line.kind == PING:
                c.pings += 1
            used += whole
        self._pass(c, data + kept, used - kept)
        return used

    cdef bint _deliver(self, Line* line, const char* payload, size_t size) noexcept nogil:
        """Give a message of the core to all here that want it; false: there are none."""
        cdef Connection* core = self._core
        cdef Subscription* one
        cdef size_t i
        cdef uint64_t generation
        if core == NULL or self._is_forbidden:
            return False
        generation = self._interest.generation + self._core_interest.generation
        if (
            core.remembered_for != NULL
            and core.remembered_at == generation
            and core.remembered_size == line.subject_size
            and memcmp(core.remembered, line.subject, line.subject_size) == 0
        ):
            self._give(core.remembered_for, line, payload, size)
            return True
        if not self._match(line) or self._interest.found_count == 0:
            return False
        if not self._core_interest.match(line.subject, line.subject_size):
            return False
        if (
            self._interest.found_count == 1
            and self._core_interest.found_count == 0
            and self._interest.found[0].queue_size == 0
        ):
            self._remember(core, line, self._interest.found[0], generation)
        self._choose()
        # It has its own copy on the same road as the others.
        for i in range(self._core_interest.found_count):
            self._give(self._core_interest.found[i], line, payload, size)
        for i in range(self._interest.found_count):
            one = self._interest.found[i]
            if one != NULL:
                self._give(one, line, payload, size)
        return True

    cdef bint _match(self, Line* line) noexcept nogil:
        """Find which clients want a message; false: nobody can say."""
        if self._interest.match(line.subject, line.subject_size):
            if self._interest.steps <= MOST_STEPS and self._interest.queued <= MOST_QUEUED:
                return True
            # Somebody has subscribed so that each message takes long: the NATS server knows how to
            # live with that.
            self._is_forbidden = True
            self._tell(b"crowd", -1)
        return False

    cdef void _remember(
        self, Connection* c, Line* line, Subscription* whose, uint64_t generation
    ) noexcept nogil:
        if line.subject_size <= REMEMBERED and whose.most == 0:
            c.remembered_at = generation
            c.remembered_size = line.subject_size
            c.remembered_for = whose
            memcpy(c.remembered, line.subject, line.subject_size)
        else:
            c.remembered_for = NULL

    cdef void _choose(self) noexcept nogil:
        """Of what was found leave one member of each queue group."""
        cdef Subscription** found = self._interest.found
        cdef size_t count = self._interest.found_count
        cdef Subscription* kept
        cdef size_t i
        cdef size_t k
        cdef size_t at
        cdef uint32_t members
        for i in range(count):
            if found[i] == NULL or found[i].queue_size == 0:
                continue
            at = i
            members = 1
            for k in range(i + 1, count):
                if (
                    found[k] != NULL
                    and found[k].queue_size == found[i].queue_size
                    and memcmp(found[k].queue, found[i].queue, found[i].queue_size) == 0
                ):
                    members += 1
                    self._random ^= self._random << 13
                    self._random ^= self._random >> 17
                    self._random ^= self._random << 5
                    # The others are taken out, whichever is kept for now.
                    if self._random % members == 0:
                        kept = found[k]
                        found[k] = found[at]
                        found[at] = kept
                    found[k] = NULL

    cdef void _give(
        self, Subscription* whose, Line* line, const char* payload, size_t size
    ) noexcept nogil:
        """Write a message for one subscription."""
        cdef Connection* c = <Connection*>whose.owner
        cdef size_t most = line.subject_size + whose.sid_size + line.other_size + 40 + size
        cdef char* at
        cdef char* start
        if c.is_gone or c.is_cut or c.is_up_gone:
            return
        if not c.is_core and waiting(&c.said) + most > self._max_pending:
            self._cut(c)
            self._touch(c)
            return
        start = room(&c.said, most)
        if start == NULL:
            self._cut(c)
            self._touch(c)
            return
        at = start
        memcpy(at, b"MSG ", 4)
        at += 4
        memcpy(at, line.subject, line.subject_size)
        at += line.subject_size
        at[0] = c' '
        at += 1
        memcpy(at, whose.sid, whose.sid_size)
        at += whose.sid_size
        at[0] = c' '
        at += 1
        if line.other_size > 0:
            memcpy(at, line.other, line.other_size)
            at += line.other_size
            at[0] = c' '
            at += 1
        at = write_number(at, line.number)
        at[0] = c'\r'
        at[1] = c'\n'
        at += 2
        memcpy(at, payload, size)
        at += size
        c.said.end += at - start
        if c.is_core:
            self.direct_in += 1
        else:
            self.direct_out += 1
        whose.delivered += 1
        whose.direct += 1
        if whose.most > 0 and whose.delivered >= whose.most:
            self._withdraw(c, whose)
        self._touch(c)

    cdef void _withdraw(self, Connection* c, Subscription* whose) noexcept nogil:
        """Its limit is reached; the NATS server has counted fewer, and may send more meanwhile."""
        put(&c.said_up, b"UNSUB ", 6)
        put(&c.said_up, whose.sid, whose.sid_size)
        put(&c.said_up, b"\r\n", 2)
        put(&c.ended, <const char*>&whose.sid_hash, sizeof(uint64_t))
        self._forget(c, whose)
        self._ask_of_ended(c)

    cdef void _ask_of_ended(self, Connection* c) noexcept nogil:
        """When the NATS server has answered, nothing is on its way any more for what has ended."""
        if waiting(&c.ended) > 0 and not c.is_asking:
            c.ended_asked = waiting(&c.ended)
            self._ask(c)

    cdef bint _pass(self, Connection* c, const char* data, size_t size) noexcept nogil:
        """Hand on to the NATS server; false: the connection has ended."""
        if not put(&c.said_up, data, size):
            self._end(c)
            return False
        return True

    # ---- from clients

    cdef size_t _from_client(self, Connection* c, const char* data, size_t size) noexcept nogil:
        """Use what a client has sent; returns how much of it. It may be held before the end."""
        cdef Line line
        cdef Subscription* ended
        cdef size_t used = 0
        cdef size_t kept = 0
        cdef size_t whole
        cdef int verdict
        while used < size and c.hold == FREE and not c.is_raw:
            read_client_line(data + used, size - used, &line)
            if line.kind == WRONG or line.argument_size > self._max_line:
                self._be_raw(c)
                break
            if line.kind == PARTIAL:
                if size - used > self._max_line + ROOM_FOR_BLANKS:
                    self._be_raw(c)
                break
            whole = line.size
            if line.kind == MESSAGE or line.kind == HEADED:
                if <size_t>line.number > self._max_payload:
                    self._be_raw(c)
                    break
                whole += line.number + 2
                if size - used < whole:
                    break
                if data[used + whole - 2] != c'\r' or data[used + whole - 1] != c'\n':
                    self._be_raw(c)
                    break
            if line.kind == PING:
                c.pings += 1
            elif line.kind == CONNECT:
                # A second one has the NATS server forget what was subscribed to before.
                self._forget_all(c)
                c.has_login = True
                # Whatever comes behind it is judged anew.
                c.is_accepted = False
                c.not_yet = c.pings + c.is_asking
                if not is_false(&line, b'"verbose"') or not is_false(&line, b'"pedantic"'):
                    # The NATS server has a word to say on each message.
                    self._be_passing(c)
            elif not c.is_accepted and line.kind != PONG:
                if not self._pass(c, data + kept, used - kept):
                    return size
                kept = used
                self._set_hold(c, ACCEPTANCE)
                if c.pings + c.is_asking == c.not_yet:
                    self._ask(c)
                break
            elif line.kind == MESSAGE:
                c.is_fenced = False
                if not c.has_login:
                    # So it has for who does not log in.
                    self._be_passing(c)
                verdict = self._publish(c, &line, data + used + line.size)
                if verdict < 0:
                    if not self._pass(c, data + kept, used - kept):
                        return size
                    kept = used
                    if c.hold == FENCE:
                        # Behind all that it has sent.
                        c.asks_again = c.is_asking
                        self._ask(c)
                    break
                if verdict > 0:
                    if not self._pass(c, data + kept, used - kept):
                        return size
                    used += whole
                    kept = used
                    continue
                self.passed_in += 1
            elif line.kind == HEADED:
                self._publish_headed(c, &line)
                self.passed_in += 1
            elif line.kind == SUB:
                # From here on the core's messages come directly.
                self._subscribe(c, &line)
                if c.is_dead:
                    return size
                if self._core != NULL and self._core_passed > self._core_read and not c.is_fenced:
                    # What it has sent through the NATS server, to nobody, must not come behind
                    # them: the NATS server learns of the subscription when it has read that.
                    self._wait_for_core(c)
                    break
                c.is_fenced = False
            elif line.kind == UNSUB:
                ended = self._unsubscribe(c, &line)
                if ended != NULL:
                    used += whole
                    if not self._pass(c, data + kept, used - kept):
                        return size
                    kept = used
                    self._withdraw(c, ended)
                    continue
            used += whole
        if c.is_raw:
            used = size
        self._pass(c, data + kept, used - kept)
        return used

    cdef void _be_passing(self, Connection* c) noexcept nogil:
        if not c.is_passing:
            c.is_passing = True
            self.passing += 1

    cdef void _be_raw(self, Connection* c) noexcept nogil:
        """The NATS server will end it: nothing of what comes is looked at any more."""
        c.is_raw = True
        self._be_passing(c)
        self._forget_all(c)

    cdef int _publish(self, Connection* c, Line* line, const char* payload) noexcept nogil:
        """1: the core has it, 0: it goes through the NATS server, -1: not now."""
        cdef Connection* core = self._core
        cdef Subscription* one
        cdef size_t i
        cdef uint64_t since = 0
        cdef uint64_t generation
        cdef bint is_wild
        if not self._is_on or self._is_forbidden or core == NULL or not core.is_accepted:
            c.is_stale = True
            return 0
        if c.is_passing:
            return 0
        generation = self._interest.generation + self._core_interest.generation
        if (
            c.remembered_for == NULL
            or c.remembered_at != generation
            or c.remembered_size != line.subject_size
            or memcmp(c.remembered, line.subject, line.subject_size) != 0
        ):
            c.remembered_for = NULL
            if not self._core_interest.match(line.subject, line.subject_size):
                c.is_stale = True
                return 0
            if self._core_interest.found_count == 0:
                self._note_passed(c)
                if not is_subject(line.subject, line.subject_size, &is_wild) or is_wild:
                    # It is complained of, and may be delivered all the same.
                    c.is_stale = True
                return 0
            for i in range(self._core_interest.found_count):
                one = self._core_interest.found[i]
                if one.queue_size > 0 or one.most > 0:
                    c.is_stale = True
                    return 0
                since = max(since, one.since)
            if not self._match(line) or self._interest.found_count > 0:
                c.is_stale = True
                return 0
        else:
            since = c.remembered_for.since
        if c.is_stale or (c.passed_at != 0 and c.passed_at < since):
            self._set_hold(c, FENCE)
            return -1
        if waiting(&core.said) > CORE_MOST:
            self._set_hold(c, CORE_ROOM)
            return -1
        if c.remembered_for != NULL:
            self._give(c.remembered_for, line, payload, line.number + 2)
            return 1
        if self._core_interest.found_count == 1:
            self._remember(c, line, self._core_interest.found[0], generation)
        for i in range(self._core_interest.found_count):
            self._give(self._core_interest.found[i], line, payload, line.number + 2)
        return 1

    cdef void _publish_headed(self, Connection* c, Line* line) noexcept nogil:
        """A message with headers goes through the NATS server, and with it what follows."""
        if self._core == NULL or not self._is_on:
            c.is_stale = True
        elif (
            not self._core_interest.match(line.subject, line.subject_size)
            or self._core_interest.found_count > 0
        ):
            self._be_passing(c)
        self._note_passed(c)

    cdef void _note_passed(self, Connection* c) noexcept nogil:
        if c.passed_at == 0:
            c.passed_at = self._core_number

    cdef void _subscribe(self, Connection* c, Line* line) noexcept nogil:
        cdef bint is_wild
        cdef Subscription* new
        if (
            not is_subject(line.subject, line.subject_size, &is_wild)
            or self._of_sid(c, line) != NULL
        ):
            # What the NATS server refuses, or ignores because the sid is in use, does nothing here
            # either.
            return
        if c.is_core:
            new = self._core_interest.add(
                &c.owner,
                line.subject,
                line.subject_size,
                line.sid,
                line.sid_size,
                line.other,
                line.other_size,
            )
        else:
            new = self._interest.add(
                &c.owner,
                line.subject,
                line.subject_size,
                line.sid,
                line.sid_size,
                line.other,
                line.other_size,
            )
        if new == NULL:
            self._end(c)
            return
        new.since = self._core_number
        if waiting(&c.ended) > 0:
            begin_again(c, new.sid_hash)

    cdef Subscription* _unsubscribe(self, Connection* c, Line* line) noexcept nogil:
        """Returns a subscription that has got all of its limit, of which the NATS server does not
        know; else NULL.
        """
        cdef Subscription* which = self._of_sid(c, line)
        if which == NULL:
            return NULL
        if line.number > which.delivered:
            which.most = line.number
            # It may be the one that is remembered.
            self._interest.generation += 1
            return NULL
        if line.number > 0 and which.direct > 0:
            return which
        self._forget(c, which)
        return NULL

    cdef Subscription* _of_sid(self, Connection* c, Line* line) noexcept nogil:
        if c.is_core:
            return self._core_interest.of_sid(&c.owner, line.sid, line.sid_size)
        return self._interest.of_sid(&c.owner, line.sid, line.sid_size)

    cdef void _forget(self, Connection* c, Subscription* which) noexcept nogil:
        if c.is_core:
            self._core_interest.remove(which)
        else:
            self._interest.remove(which)

    cdef void _forget_all(self, Connection* c) noexcept nogil:
        if c.is_core:
            self._core_interest.remove_all(&c.owner)
        else:
            self._interest.remove_all(&c.owner)

    # ---- from the NATS server

    cdef size_t _from_server(self, Connection* c, const char* data, size_t size) noexcept nogil:
        """Use what the NATS server has sent; returns how much of it."""
        cdef Line line
        cdef size_t used = 0
        cdef size_t kept = 0
        cdef size_t whole
        cdef bint is_dropped
        while used < size and not c.is_raw_up:
            read_server_line(data + used, size - used, &line)
            if line.kind == PARTIAL:
                break
            if line.kind == WRONG:
                c.is_raw_up = True
                break
            whole = line.size
            is_dropped = False
            if line.kind == MESSAGE or line.kind == HEADED:
                whole += line.number + 2
                if size - used < whole:
                    break
                is_dropped = not self._count(c, &line)
                if not c.is_core:
                    self.passed_out += 1
            elif line.kind == PONG:
                is_dropped = self._ponged(c)
            elif line.kind == INFO:
                self._learn(&line)
            if is_dropped:
                put(&c.said, data + kept, used - kept)
                kept = used + whole
            used += whole
        if c.is_raw_up:
            used = size
        if not put(&c.said, data + kept, used - kept):
            self._end(c)
        return used

    cdef bint _count(self, Connection* c, Line* line) noexcept nogil:
        """Count a message of the NATS server; false: the client has got all that it asked for."""
        cdef Subscription* which = self._of_sid(c, line)
        if which == NULL:
            return not has_ended(c, self._interest.hash_of_sid(&c.owner, line.sid, line.sid_size))
        which.delivered += 1
        if which.most > 0 and which.delivered >= which.most:
            if which.direct > 0:
                self._withdraw(c, which)
            else:
                # The NATS server has counted them all.
                self._forget(c, which)
        return True

    cdef bint _ponged(self, Connection* c) noexcept nogil:
        """The answer to a PING; returns whether that was ours."""
        cdef bint is_ours = c.is_asking and c.pings_before == 0
        if c.is_asking and not is_ours:
            c.pings_before -= 1
        if is_ours:
            c.is_asking = False
            take(&c.ended, c.ended_asked)
            c.ended_asked = 0
        elif c.pings > 0:
            c.pings -= 1
        if c.not_yet > 0:
            # Of a PING in front of its login.
            c.not_yet -= 1
            if c.hold == ACCEPTANCE and c.pings == 0:
                self._ask(c)
        elif not c.is_accepted:
            c.is_accepted = True
            self._may_resume = True
        if not is_ours:
            return False
        if c.is_core:
            if c != self._core:
                return True
            self._tickets_done = self._tickets_asked
            self._core_read = self._core_asked
            self._may_resume = True
            if self._tickets > self._tickets_asked:
                self._ask_core()
        elif c.hold == FENCE and c.asks_again:
            # That PING was in front of what it sent since.
            c.asks_again = False
            self._ask(c)
        elif c.hold == FENCE:
            # What it sent has been handed to the core's connection: is it out there?
            if self._core != NULL and self._core.is_accepted:
                self._wait_for_core(c)
                c.is_stale = False
                c.passed_at = 0
            else:
                # What follows goes the same way as what went before.
                self._may_resume = True
        self._ask_of_ended(c)
        return True

    cdef void _learn(self, Line* line) noexcept nogil:
        cdef const char* at = front_find(line.argument, line.argument_size, b'"max_payload":')
        cdef size_t payload = 0
        if at != NULL:
            while c'0' <= at[0] <= c'9':
                payload = payload * 10 + (at[0] - c'0')
                at += 1
            if payload > 0:
                self._max_payload = payload

    # ---- order

    cdef void _ask(self, Connection* c) noexcept nogil:
        """Send a PING of ours, unless one is under way."""
        if c.is_asking:
            return
        c.is_asking = True
        c.pings_before = c.pings
        put(&c.said_up, b"PING\r\n", 6)
        self._touch(c)

    cdef void _wait_for_core(self, Connection* c) noexcept nogil:
        """Hold the connection until all is here that the NATS server has for the core, and until
        the NATS server has read all that the core has sent.
        """
        self._set_hold(c, CORE_FENCE)
        self._tickets += 1
        c.ticket = self._tickets
        if not self._core.is_asking:
            self._ask_core()

    cdef void _ask_core(self) noexcept nogil:
        self._tickets_asked = self._tickets
        self._core_asked = self._core_passed
        self._ask(self._core)

    cdef void _set_hold(self, Connection* c, Hold hold) noexcept nogil:
        if c.hold == FREE and hold != FREE:
            self._held += 1
        elif c.hold != FREE and hold == FREE:
            self._held -= 1
        c.hold = hold

    cdef void _resume(self) noexcept nogil:
        """Read on where there is nothing to wait for any more."""
        cdef Connection* c = self._all
        cdef Connection* following
        self._may_resume = False
        while c != NULL:
            following = c.after
            if c.hold != FREE and self._is_over_with(c):
                c.is_fenced = c.hold == CORE_FENCE
                self._set_hold(c, FREE)
                self._go_on(c)
                if not c.is_dead:
                    self._touch(c)
            c = following

    cdef bint _is_over_with(self, Connection* c) noexcept nogil:
        """Whether what it is held for has come."""
        if c.hold == ACCEPTANCE:
            return c.is_accepted
        if self._core == NULL:
            return True
        if c.hold == CORE_ROOM:
            if not self._is_on or self._is_forbidden:
                return True
            return waiting(&self._core.said) <= CORE_MOST // 2
        if c.hold == CORE_FENCE:
            return c.ticket <= self._tickets_done
        return not c.is_asking

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
            if not self._send(c.fd, &c.said):
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
            if c.hold == FREE and waiting(&c.said_up) < PASS_MOST:
                events |= EPOLLIN
            if waiting(&c.said) > 0:
                events |= EPOLLOUT
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
            if c.until != 0 and now >= c.until:
                c.until = 0
                self._timed -= 1
                if c.up < 0 and not c.is_gone and not c.is_up_gone:
                    self._connect(c)
                else:
                    self._end(c)
            c = following


cdef bint has_ended(Connection* c, uint64_t hash) noexcept nogil:
    """Whether a subscription has reached its limit, and messages of it may be on their way."""
    cdef size_t i
    for i in range(waiting(&c.ended) // sizeof(uint64_t)):
        if (<uint64_t*>first(&c.ended))[i] == hash:
            return True
    return False


cdef void begin_again(Connection* c, uint64_t hash) noexcept nogil:
    """The sid is in use again."""
    cdef size_t i
    for i in range(waiting(&c.ended) // sizeof(uint64_t)):
        if (<uint64_t*>first(&c.ended))[i] == hash:
            (<uint64_t*>first(&c.ended))[i] = 0


cdef inline void shrink(Queue* queue) noexcept nogil:
    if queue.size > 0 and waiting(queue) == 0:
        drop(queue)


cdef inline char* write_number(char* at, long long number) noexcept nogil:
    cdef char[24] digits
    cdef int n = 0
    while number > 9:
        digits[n] = <char>(c'0' + number % 10)
        number //= 10
        n += 1
    at[0] = <char>(c'0' + number)
    at += 1
    while n > 0:
        n -= 1
        at[0] = digits[n]
        at += 1
    return at


cdef bint is_false(Line* line, const char* key) noexcept nogil:
    """Whether a login has a key that is false: one that it leaves out is true."""
    cdef const char* end = line.argument + line.argument_size
    cdef const char* at = front_find(line.argument, line.argument_size, key)
    while at != NULL and at < end and (at[0] == c' ' or at[0] == c'\t' or at[0] == c':'):
        at += 1
    return at != NULL and at < end and at[0] == c'f'
