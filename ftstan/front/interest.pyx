"""Who wants which subjects: subscriptions of many connections, found by the subject of a message.

A subscription lies under its subject, or, with wildcards, under what stands in front of the first
one; so a message is looked for under its subject and under each of its beginnings that end at a
dot.
"""

import os
import struct

from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

cdef enum:
    FIRST_BUCKETS = 64
    FIRST_FOUND = 16

#: An odd number whose bits look like nothing.
cdef uint64_t MIX = 0x9E3779B97F4A7C15ULL
#: Keeps subjects with wildcards apart from others.
cdef uint64_t WILD = 0xD1B54A32D192ED03ULL


cdef inline uint64_t step(uint64_t hash, char c) noexcept nogil:
    """One more byte; what comes out depends on every bit that went in."""
    hash = (hash ^ <unsigned char>c) * MIX
    return hash ^ (hash >> 29)


cdef uint64_t hash_of(const char* data, size_t size, uint64_t hash) noexcept nogil:
    cdef size_t i
    for i in range(size):
        hash = step(hash, data[i])
    return hash


cdef bint is_subject(const char* subject, size_t size, bint* is_wild) noexcept nogil:
    """Whether a client can subscribe to it."""
    cdef size_t i
    cdef size_t start = 0
    is_wild[0] = False
    if size == 0:
        return False
    for i in range(size + 1):
        if i < size and subject[i] != c'.':
            continue
        if i == start:
            return False
        if i == start + 1 and (subject[start] == c'*' or subject[start] == c'>'):
            is_wild[0] = True
            if subject[start] == c'>' and i < size:
                return False
        start = i + 1
    return True


cdef size_t literal_of(const char* subject, size_t size) noexcept nogil:
    """Bytes in front of the first wildcard, its dot not counted."""
    cdef size_t i
    cdef size_t start = 0
    for i in range(size + 1):
        if i < size and subject[i] != c'.':
            continue
        if i == start + 1 and (subject[start] == c'*' or subject[start] == c'>'):
            return start - 1 if start > 0 else 0
        start = i + 1
    return size


cdef bint suits(
    const char* pattern, size_t pattern_size, const char* subject, size_t size
) noexcept nogil:
    """Whether a subject is one of those that the pattern stands for."""
    cdef size_t p = 0
    cdef size_t s = 0
    while p < pattern_size and s < size:
        if pattern[p] == c'>' and p + 1 == pattern_size and (p == 0 or pattern[p - 1] == c'.'):
            return True
        if (
            pattern[p] == c'*'
            and (p == 0 or pattern[p - 1] == c'.')
            and (p + 1 == pattern_size or pattern[p + 1] == c'.')
        ):
            while s < size and subject[s] != c'.':
                s += 1
            p += 1
        else:
            while p < pattern_size and pattern[p] != c'.':
                if s == size or subject[s] != pattern[p]:
                    return False
                s += 1
                p += 1
            if s < size and subject[s] != c'.':
                return False
        if p < pattern_size and s < size:
            # Both at a dot.
            p += 1
            s += 1
        elif p < pattern_size or s < size:
            return False
    return p == pattern_size and s == size


cdef class Interest:
    """Subscriptions of many owners. Without the GIL, for one thread."""

    def __cinit__(self):
        self._buckets = <Subscription**>calloc(FIRST_BUCKETS, sizeof(Subscription*))
        self._sids = <Subscription**>calloc(FIRST_BUCKETS, sizeof(Subscription*))
        self.found = <Subscription**>malloc(FIRST_FOUND * sizeof(Subscription*))
        if self._buckets == NULL or self._sids == NULL or self.found == NULL:
            raise MemoryError
        self._mask = FIRST_BUCKETS - 1
        # Nobody outside can choose subjects that lie together.
        self._seed, self._key = struct.unpack("=QQ", os.urandom(16))
        self._found_size = FIRST_FOUND

    def __dealloc__(self):
        cdef size_t i
        cdef Subscription* one
        cdef Subscription* following
        if self._buckets != NULL:
            for i in range(self._mask + 1):
                one = self._buckets[i]
                while one != NULL:
                    following = one.next
                    free(one)
                    one = following
        free(self._buckets)
        free(self._sids)
        free(self.found)

    cdef Subscription* add(
        self,
        Owner* owner,
        const char* subject,
        size_t subject_size,
        const char* sid,
        size_t sid_size,
        const char* queue,
        size_t queue_size,
    ) noexcept nogil:
        """A new subscription; NULL: no memory. The subject is one (``is_subject``), the sid is not
        in use.
        """
        cdef Subscription* new
        cdef char* text
        cdef bint is_wild = False
        if self.count > self._mask and not self._grow():
            return NULL
        new = <Subscription*>calloc(1, sizeof(Subscription) + subject_size + sid_size + queue_size)
        if new == NULL:
            return NULL
        text = <char*>(new + 1)
        memcpy(text, subject, subject_size)
        memcpy(text + subject_size, sid, sid_size)
        if queue_size > 0:
            memcpy(text + subject_size + sid_size, queue, queue_size)
        new.owner = owner
        new.subject = text
        new.subject_size = subject_size
        new.sid = text + subject_size
        new.sid_size = sid_size
        new.queue = text + subject_size + sid_size
        new.queue_size = queue_size
        is_subject(subject, subject_size, &is_wild)
        new.is_wild = is_wild
        new.literal = literal_of(subject, subject_size)
        new.hash = self._spread(
            hash_of(subject, new.literal, self._seed) ^ (WILD if is_wild else 0)
        )
        new.sid_hash = self.hash_of_sid(owner, sid, sid_size)
        self._put(new)
        new.after = owner.subscriptions
        if new.after != NULL:
            new.after.before = new
        owner.subscriptions = new
        self.count += 1
        self.generation += 1
        return new

    cdef uint64_t _spread(self, uint64_t hash) noexcept nogil:
        hash = (hash ^ self._key) * MIX
        return hash ^ (hash >> 32)

    cdef uint64_t hash_of_sid(self, Owner* owner, const char* sid, size_t size) noexcept nogil:
        """What a subscription of that sid has as ``sid_hash``."""
        return self._spread(hash_of(sid, size, self._seed ^ <uintptr_t>owner))

    cdef void _put(self, Subscription* which) noexcept nogil:
        cdef Subscription** bucket = &self._buckets[which.hash & self._mask]
        which.next = bucket[0]
        which.pointer = bucket
        if which.next != NULL:
            which.next.pointer = &which.next
        bucket[0] = which
        which.next_sid = self._sids[which.sid_hash & self._mask]
        self._sids[which.sid_hash & self._mask] = which

    cdef bint _grow(self) noexcept nogil:
        cdef size_t size = 2 * (self._mask + 1)
        cdef size_t i
        cdef Subscription** old = self._buckets
        cdef size_t old_size = self._mask + 1
        cdef Subscription* one
        cdef Subscription* following
        cdef Subscription** buckets = <Subscription**>calloc(size, sizeof(Subscription*))
        cdef Subscription** sids = <Subscription**>calloc(size, sizeof(Subscription*))
        if buckets == NULL or sids == NULL:
            free(buckets)
            free(sids)
            return False
        free(self._sids)
        self._buckets = buckets
        self._sids = sids
        self._mask = size - 1
        for i in range(old_size):
            one = old[i]
            while one != NULL:
                following = one.next
                self._put(one)
                one = following
        free(old)
        return True

    cdef Subscription* of_sid(self, Owner* owner, const char* sid, size_t sid_size) noexcept nogil:
        """The owner's subscription of that sid; NULL: none."""
        cdef uint64_t hash = self.hash_of_sid(owner, sid, sid_size)
        cdef Subscription* one = self._sids[hash & self._mask]
        while one != NULL:
            if (
                one.owner == owner
                and one.sid_size == sid_size
                and memcmp(one.sid, sid, sid_size) == 0
            ):
                return one
            one = one.next_sid
        return NULL

    cdef void remove(self, Subscription* which) noexcept nogil:
        """It is wanted no more, and freed."""
        cdef Subscription** link = &self._sids[which.sid_hash & self._mask]
        self.steps += 1
        # Those of one beginning lie in one bucket, and as many there as somebody cares to make.
        which.pointer[0] = which.next
        if which.next != NULL:
            which.next.pointer = which.pointer
        while link[0] != which:
            self.steps += 1
            link = &link[0].next_sid
        link[0] = which.next_sid
        if which.before != NULL:
            which.before.after = which.after
        else:
            which.owner.subscriptions = which.after
        if which.after != NULL:
            which.after.before = which.before
        free(which)
        self.count -= 1
        self.generation += 1

    cdef void remove_all(self, Owner* owner) noexcept nogil:
        """The owner has gone."""
        self.steps = 0
        while owner.subscriptions != NULL:
            self.remove(owner.subscriptions)

    cdef bint _take(self, Subscription* which) noexcept nogil:
        cdef Subscription** larger
        if self.found_count == self._found_size:
            larger = <Subscription**>realloc(
                self.found, 2 * self._found_size * sizeof(Subscription*)
            )
            if larger == NULL:
                return False
            self.found = larger
            self._found_size *= 2
        self.queued += which.queue_size > 0
        self.found[self.found_count] = which
        self.found_count += 1
        return True

    cdef bint match(self, const char* subject, size_t size) noexcept nogil:
        """Set ``found`` to all that want the subject; false: no memory.

        Nothing is found for a subject with an empty token, or with a wildcard: the NATS server
        delivers no such message.
        """
        cdef uint64_t hash = self._seed
        cdef size_t i
        cdef size_t start = 0
        cdef Subscription* one
        self.found_count = 0
        self.steps = 0
        self.queued = 0
        for i in range(size + 1):
            if i < size and subject[i] != c'.':
                hash = step(hash, subject[i])
                continue
            if i == start or (
                i == start + 1 and (subject[start] == c'*' or subject[start] == c'>')
            ):
                self.found_count = 0
                return True
            if start == 0 and not self._take_wild(
                self._spread(self._seed ^ WILD), 0, subject, size
            ):
                return False
            start = i + 1
            if i == size:
                break
            if not self._take_wild(self._spread(hash ^ WILD), i, subject, size):
                return False
            hash = step(hash, c'.')
        hash = self._spread(hash)
        one = self._buckets[hash & self._mask]
        while one != NULL:
            self.steps += 1
            if (
                one.hash == hash
                and not one.is_wild
                and one.subject_size == size
                and memcmp(one.subject, subject, size) == 0
                and not self._take(one)
            ):
                return False
            one = one.next
        return True

    cdef bint _take_wild(
        self, uint64_t hash, size_t literal, const char* subject, size_t size
    ) noexcept nogil:
        cdef Subscription* one = self._buckets[hash & self._mask]
        while one != NULL:
            self.steps += 1
            if (
                one.hash == hash
                and one.is_wild
                and one.literal == literal
                and suits(one.subject, one.subject_size, subject, size)
                and not self._take(one)
            ):
                return False
            one = one.next
        return True


cdef class Book:
    """An ``Interest`` for tests: owners are numbers from 0 to 15."""

    cdef Interest _interest
    cdef Owner[16] _owners

    def __init__(self):
        self._interest = Interest()
        for i in range(16):
            self._owners[i].subscriptions = NULL

    def subscribe(self, int owner, subject: bytes, sid: bytes, queue: bytes = b"") -> bool:
        """Whether it is a subscription: a subject, with a sid that is free."""
        cdef bint is_wild
        if not is_subject(subject, len(subject), &is_wild) or self._interest.of_sid(
            &self._owners[owner], sid, len(sid)
        ) != NULL:
            return False
        self._interest.add(
            &self._owners[owner], subject, len(subject), sid, len(sid), queue, len(queue)
        )
        return True

    def unsubscribe(self, int owner, sid: bytes) -> bool:
        """Whether there was one."""
        cdef Subscription* which = self._interest.of_sid(&self._owners[owner], sid, len(sid))
        if which == NULL:
            return False
        self._interest.remove(which)
        return True

    def leave(self, int owner) -> None:
        """All subscriptions of an owner end."""
        self._interest.remove_all(&self._owners[owner])

    @property
    def steps(self) -> int:
        """How many subscriptions ``leave``, or ``who``, has looked at."""
        return self._interest.steps

    def who(self, subject: bytes):
        """Owner and sid of each that wants the subject, sorted."""
        cdef size_t i
        cdef Subscription* one
        if not self._interest.match(subject, len(subject)):
            raise MemoryError
        found = []
        for i in range(self._interest.found_count):
            one = self._interest.found[i]
            found.append((<int>(one.owner - &self._owners[0]), one.sid[: one.sid_size]))
        return sorted(found)
