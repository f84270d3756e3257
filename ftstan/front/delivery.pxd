"""Messages of the core to clients, and of clients to the core."""

from libc.stdint cimport uint32_t, uint64_t

from ftstan.front.connection cimport Connection
from ftstan.front.interest cimport Interest, Subscription
from ftstan.front.lines cimport Line
from ftstan.front.order cimport Order


cdef class Delivery(Order):
    #: What clients subscribe to, and the core.
    cdef Interest _interest
    cdef Interest _core_interest
    #: The core's subscriptions so far, one more.
    cdef uint64_t _core_number
    #: The NATS server takes messages with headers.
    cdef bint _has_headers
    cdef uint32_t _random
    cdef readonly uint64_t direct_in
    cdef readonly uint64_t direct_out

    cdef bint _deliver(self, Line* line, const char* payload, size_t size) noexcept nogil
    cdef bint _match(self, const char* subject, size_t size) noexcept nogil
    cdef bint _are_shared(self) noexcept nogil
    cdef void _look_for_others(self, Line* request) noexcept nogil
    cdef void _remember(
        self, Connection* c, Line* line, Subscription* whose, uint64_t generation
    ) noexcept nogil
    cdef void _choose(self) noexcept nogil
    cdef void _give(
        self, Subscription* whose, Line* line, const char* payload, size_t size
    ) noexcept nogil
    cdef void _withdraw(self, Connection* c, Subscription* whose) noexcept nogil
    cdef void _subscribe(self, Connection* c, Line* line) noexcept nogil
    cdef Subscription* _unsubscribe(self, Connection* c, Line* line) noexcept nogil
    cdef bint _count(self, Connection* c, Line* line) noexcept nogil
    cdef Subscription* _of_sid(self, Connection* c, Line* line) noexcept nogil
    cdef void _forget(self, Connection* c, Subscription* which) noexcept nogil
