"""When sockets are read and written."""

from libc.stdint cimport int64_t, uint64_t

from ftstan.front.connection cimport Connection
from ftstan.front.connections cimport Command
from ftstan.front.handshakes cimport Handshakes
from ftstan.front.queue cimport Queue


cdef class Loop(Handshakes):
    cdef bint _is_over
    #: That the kernel does not tell whose the NATS server is has been told.
    cdef bint _is_unseen
    cdef int64_t _sweep_at
    cdef int64_t _timed_at
    #: The NATS server has ended the core's connection: what it had for the core waits no longer.
    cdef bint _is_last_word
    #: Connections that are read again without waiting.
    cdef Connection* _again
    #: Commands that were carried out.
    cdef readonly uint64_t obeyed

    cdef void _turn(self) noexcept nogil
    cdef size_t _from_client(self, Connection* c, const char* data, size_t size) noexcept nogil
    cdef size_t _from_server(self, Connection* c, const char* data, size_t size) noexcept nogil
    cdef void _judge_no_more(self, Connection* c) noexcept nogil
    cdef void _resume(self) noexcept nogil
    cdef void _carry_out(self, Command* command) noexcept nogil
    cdef void _obey(self) noexcept nogil
    cdef void _read_again(self) noexcept nogil
    cdef ssize_t _receive(self, Connection* c, char* place) noexcept nogil
    cdef void _read_client(self, Connection* c) noexcept nogil
    cdef void _go_on(self, Connection* c) noexcept nogil
    cdef void _hear_on(self, Connection* c) noexcept nogil
    cdef void _read_server(self, Connection* c) noexcept nogil
    cdef void _hear_nothing(self, Connection* c, ssize_t got) noexcept nogil
    cdef void _flush(self) noexcept nogil
    cdef void _send_all(self, Connection* c) noexcept nogil
    cdef bint _send_client(self, Connection* c) noexcept nogil
    cdef bint _send(self, int fd, Queue* queue) noexcept nogil
    cdef void _await(self, Connection* c) noexcept nogil
    cdef void _sweep(self, int64_t now) noexcept nogil
