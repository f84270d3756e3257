"""Handshakes of clients with TLS."""

from libc.stdint cimport uint64_t

from ftstan.front.connection cimport Connection
from ftstan.front.connections cimport Connections
from ftstan.front.tls cimport front_tls


cdef class Handshakes(Connections):
    cdef Connection* _oldest_shaking
    cdef Connection* _newest_shaking
    #: Steps of handshakes that this turn has left.
    cdef int _steps
    cdef readonly uint64_t encrypted
    cdef readonly uint64_t not_shaken

    cdef void _use_tls(self, front_tls* tls) noexcept nogil
    cdef void _greet(self, Connection* c) noexcept nogil
    cdef void _shake(self, Connection* c) noexcept nogil
    cdef void _be_shaken(self, Connection* c) noexcept nogil
    cdef void _tell_of_tls(self, Connection* c, const char* reason) noexcept nogil
