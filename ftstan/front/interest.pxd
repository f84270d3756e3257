"""Who wants which subjects."""

from libc.stdint cimport uint64_t


cdef struct Subscription:
    #: Whose it is.
    Owner* owner
    const char* subject
    size_t subject_size
    const char* sid
    size_t sid_size
    #: The queue group, size 0: none.
    const char* queue
    size_t queue_size
    #: After so many messages it ends; 0: it does not.
    long long most
    long long delivered
    #: How many of them did not come from the NATS server.
    long long direct
    #: For the owner of this table: when it was added.
    uint64_t since
    #: Bytes of the subject in front of the first wildcard's dot.
    size_t literal
    bint is_wild
    uint64_t hash
    uint64_t sid_hash
    #: In the list of its bucket, of its sid's bucket, of its owner.
    Subscription* next
    #: What points to it in the list of its bucket: very many may lie in one.
    Subscription** pointer
    Subscription* next_sid
    Subscription* before
    Subscription* after


#: What subscribes.
cdef struct Owner:
    Subscription* subscriptions


cdef bint is_subject(const char* subject, size_t size, bint* is_wild) noexcept nogil


cdef class Interest:
    cdef Subscription** _buckets
    cdef Subscription** _sids
    cdef size_t _mask
    cdef size_t count
    #: How often anything has changed.
    cdef uint64_t generation
    #: What ``match`` has found.
    cdef Subscription** found
    cdef size_t found_count
    cdef size_t _found_size
    #: How many subscriptions the last ``match``, or ``remove_all``, has looked at, and how many of
    #: those found are of queue groups.
    cdef size_t steps
    cdef size_t queued
    cdef uint64_t _seed
    cdef uint64_t _key

    cdef Subscription* add(
        self,
        Owner* owner,
        const char* subject,
        size_t subject_size,
        const char* sid,
        size_t sid_size,
        const char* queue,
        size_t queue_size,
    ) noexcept nogil
    cdef Subscription* of_sid(
        self, Owner* owner, const char* sid, size_t sid_size
    ) noexcept nogil
    cdef void remove(self, Subscription* which) noexcept nogil
    cdef void remove_all(self, Owner* owner) noexcept nogil
    cdef bint match(self, const char* subject, size_t size) noexcept nogil
    cdef uint64_t hash_of_sid(
        self, Owner* owner, const char* sid, size_t size
    ) noexcept nogil
    cdef uint64_t _spread(self, uint64_t hash) noexcept nogil
    cdef bint _grow(self) noexcept nogil
    cdef bint _take(self, Subscription* which) noexcept nogil
    cdef void _put(self, Subscription* which) noexcept nogil
    cdef bint _take_wild(
        self, uint64_t hash, size_t literal, const char* subject, size_t size
    ) noexcept nogil
