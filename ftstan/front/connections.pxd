"""Connections of clients, of the core and to the NATS server."""

from libc.stdint cimport int64_t, uint64_t

from ftstan.front.connection cimport Connection, Hold
from ftstan.front.tls cimport front_tls

cdef enum:
    #: Bytes that may wait for the core until no client is read any further, whatever the core says
    #: that it gets through in time.
    CORE_MOST = 4 << 20
    #: Bytes of each client that may wait there in any case, at least: others' must not keep it
    #: waiting; and what part of the whole.
    CORE_SHARE = 16 << 10
    CORE_SHARES = 8
    #: Bytes read at once.
    READ = 256 << 10
    #: Until a NATS server that was not there is tried again, and one that is accepting no more
    #: (ms).
    RETRY = 20

#: What an event is about that is no connection's.
cdef enum:
    COMMANDS = 2
    CLIENTS = 4


#: What ``listener.py`` writes: a letter and what belongs to it.
cdef struct Command:
    char what
    int number
    int other
    int64_t place


cdef class Connections:
    cdef int _poll
    cdef int _commands
    cdef int _words
    cdef int _listening
    cdef int _server_port
    #: Nobody is greeted.
    cdef bint _is_paused
    cdef bint _is_accepting
    cdef int64_t _accept_at
    cdef Connection* _core
    #: Bytes that may wait for it until clients that have their share there are read no further,
    #: which they are when half of it is left: each its share in its turn while others wait.
    cdef size_t _core_room
    #: How often it was below a half, and when it was last (ms).
    cdef uint64_t _drained
    cdef int64_t _drained_at
    cdef Connection* _all
    cdef Connection* _dirty
    cdef Connection* _dead
    #: How many connections are held, and whether it is time to look at them.
    cdef size_t _held
    cdef bint _may_resume
    #: How many of them wait for room at the core; and whether what the NATS server has for it does.
    cdef size_t _held_for_room
    cdef Connection* _held_first
    cdef Connection* _held_last
    cdef bint _passed_waits
    #: Connections that have no server yet, or that end.
    cdef size_t _timed
    #: What TLS needs; its context is NULL where clients speak plainly.
    cdef front_tls _tls
    #: Connections whose handshake is not over.
    cdef size_t _shaking
    cdef char* _scratch
    cdef size_t _max_pending
    cdef readonly uint64_t connections
    cdef readonly uint64_t passing
    cdef readonly uint64_t slow

    cdef void _wait_with_passed(self, bint on) noexcept nogil
    cdef void _forget_all(self, Connection* c) noexcept nogil
    cdef bint _make_room(self) noexcept nogil
    cdef void _leave_tls(self, Connection* c) noexcept nogil
    cdef void _pause(self, bint on) noexcept nogil
    cdef void _accept(self) noexcept nogil
    cdef void _accept_later(self) noexcept nogil
    cdef void _accept_again(self) noexcept nogil
    cdef void _connect(self, Connection* c) noexcept nogil
    cdef Connection* _new(self, int fd, int up) noexcept nogil
    cdef void _use_server(self, Connection* c, int up) noexcept nogil
    cdef void _end(self, Connection* c) noexcept nogil
    cdef void _let_go(self, Connection* c) noexcept nogil
    cdef void _free(self, Connection* c) noexcept nogil
    cdef void _bury(self) noexcept nogil
    cdef void _client_left(self, Connection* c) noexcept nogil
    cdef void _server_left(self, Connection* c) noexcept nogil
    cdef void _close_client(self, Connection* c) noexcept nogil
    cdef void _cut(self, Connection* c) noexcept nogil
    cdef void _set_hold(self, Connection* c, Hold hold) noexcept nogil
    cdef void _touch(self, Connection* c) noexcept nogil
    cdef void _tell(self, const char* what, int fd) noexcept nogil
