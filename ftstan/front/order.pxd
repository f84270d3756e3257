"""Fences between what goes through the NATS server and what goes directly."""

from libc.stdint cimport uint64_t

from ftstan.front.connection cimport Connection
from ftstan.front.loop cimport Loop


cdef class Order(Loop):
    cdef bint _is_on
    #: A reload is under way behind which there may be no direct road.
    cdef bint _is_doubtful
    cdef readonly bint is_forbidden
    #: For good: there are too many subscriptions.
    cdef readonly bint is_crowded
    #: It is allowed again, and the NATS server has not yet read all that the core sent through it;
    #: the ticket of that.
    cdef bint _is_returning
    cdef uint64_t _return_ticket
    #: Messages of the core that went through the NATS server; those it has certainly read.
    cdef uint64_t _core_passed
    cdef uint64_t _core_read
    cdef uint64_t _core_asked
    #: Tickets for the answer to a PING on the core's connection: given out, asked for, answered.
    cdef uint64_t _tickets
    cdef uint64_t _tickets_asked
    cdef uint64_t _tickets_done

    cdef void _release(self, Connection* c) noexcept nogil
    cdef void _ask(self, Connection* c) noexcept nogil
    cdef void _hush(self, Connection* c) noexcept nogil
    cdef bint _is_own(self, Connection* c) noexcept nogil
    cdef bint _ponged(self, Connection* c) noexcept nogil
    cdef void _ask_of_ended(self, Connection* c) noexcept nogil
    cdef void _wait_for_core(self, Connection* c) noexcept nogil
    cdef void _ask_core(self) noexcept nogil
    cdef bint _is_over_with(self, Connection* c) noexcept nogil
    cdef void _resume_for_room(self) noexcept nogil
    cdef void _forbid(self) noexcept nogil
    cdef void _allow(self) noexcept nogil
    cdef void _set_returning(self, bint on) noexcept nogil
    cdef void _catch_up(self) noexcept nogil
