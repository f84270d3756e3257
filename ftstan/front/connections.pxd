"""Sockets of clients, of the core and to the NATS server, and when to read and to write them."""

from libc.stdint cimport int64_t, uint64_t

from ftstan.front.connection cimport Connection, Hold
from ftstan.front.queue cimport Queue
from ftstan.front.tls cimport front_tls

cdef enum:
    #: Bytes that may wait for the core until clients are read no further; below a half they are.
    CORE_MOST = 4 << 20


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
    cdef bint _is_over
    #: That the kernel does not tell whose the NATS server is has been told.
    cdef bint _is_unseen
    #: Nobody is greeted.
    cdef bint _is_paused
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
    #: Connections that are read again without waiting.
    cdef Connection* _again
    #: What TLS needs; its context is NULL where clients speak plainly.
    cdef front_tls _tls
    #: Connections whose handshake is not over; steps of handshakes that this turn has left.
    cdef size_t _shaking
    cdef Connection* _oldest_shaking
    cdef Connection* _newest_shaking
    cdef int _steps
    cdef char* _scratch
    cdef size_t _max_pending
    #: Commands that were carried out.
    cdef readonly uint64_t obeyed
    cdef readonly uint64_t connections
    cdef readonly uint64_t passing
    cdef readonly uint64_t slow
    cdef readonly uint64_t encrypted
    cdef readonly uint64_t not_shaken

    cdef void _turn(self) noexcept nogil
    cdef size_t _from_client(self, Connection* c, const char* data, size_t size) noexcept nogil
    cdef size_t _from_server(self, Connection* c, const char* data, size_t size) noexcept nogil
    cdef void _forget_all(self, Connection* c) noexcept nogil
    cdef void _resume(self) noexcept nogil
    cdef void _carry_out(self, Command* command) noexcept nogil
    cdef void _obey(self) noexcept nogil
    cdef void _pause(self, bint on) noexcept nogil
    cdef Connection* _new(self, int fd, int up) noexcept nogil
    cdef void _use_server(self, Connection* c, int up) noexcept nogil
    cdef void _accept(self) noexcept nogil
    cdef void _accept_later(self) noexcept nogil
    cdef void _accept_again(self) noexcept nogil
    cdef void _connect(self, Connection* c) noexcept nogil
    cdef void _end(self, Connection* c) noexcept nogil
    cdef void _let_go(self, Connection* c) noexcept nogil
    cdef void _free(self, Connection* c) noexcept nogil
    cdef void _bury(self) noexcept nogil
    cdef void _client_left(self, Connection* c) noexcept nogil
    cdef void _server_left(self, Connection* c) noexcept nogil
    cdef void _cut(self, Connection* c) noexcept nogil
    cdef void _tell(self, const char* what, int fd) noexcept nogil
    cdef void _tell_of_tls(self, Connection* c, const char* reason) noexcept nogil
    cdef void _use_tls(self, front_tls* tls) noexcept nogil
    cdef void _greet(self, Connection* c) noexcept nogil
    cdef void _shake(self, Connection* c) noexcept nogil
    cdef void _be_shaken(self, Connection* c) noexcept nogil
    cdef bint _make_room(self) noexcept nogil
    cdef void _leave_tls(self, Connection* c) noexcept nogil
    cdef void _close_client(self, Connection* c) noexcept nogil
    cdef void _read_again(self) noexcept nogil
    cdef ssize_t _receive(self, Connection* c, char* place) noexcept nogil
    cdef bint _send_client(self, Connection* c) noexcept nogil
    cdef void _set_hold(self, Connection* c, Hold hold) noexcept nogil
    cdef void _touch(self, Connection* c) noexcept nogil
    cdef void _read_client(self, Connection* c) noexcept nogil
    cdef void _go_on(self, Connection* c) noexcept nogil
    cdef void _read_server(self, Connection* c) noexcept nogil
    cdef void _hear_nothing(self, Connection* c, ssize_t got) noexcept nogil
    cdef void _flush(self) noexcept nogil
    cdef void _send_all(self, Connection* c) noexcept nogil
    cdef bint _send(self, int fd, Queue* queue) noexcept nogil
    cdef void _await(self, Connection* c) noexcept nogil
    cdef void _sweep(self, int64_t now) noexcept nogil
