"""Who subscribes, whom a message of the core is for, and how it is written to them.

Nothing is ever said for the core but what it has written itself, which it does behind *confirm*
(``docs/architecture.md``); and nobody is given anything whom the NATS server has not let in.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from ftstan.front.connection cimport CORE_FENCE, REMEMBERED, Connection
from ftstan.front.interest cimport Interest, Subscription, is_subject
from ftstan.front.lines cimport HEADED, Line, read_server_line
from ftstan.front.order cimport Order
from ftstan.front.queue cimport Queue, drop, first, put, room, waiting

cdef enum:
    #: Subscriptions that are looked at for one message.
    MOST_STEPS = 4096
    #: Members of queue groups among which one message looks for its own.
    MOST_QUEUED = 64
    #: Bytes of ``_INBOX``.
    INBOXES_SIZE = 6
    #: Seconds after which nothing of a connection is on its way any more; clients send something
    #: every 5. Who waits longer for the NATS server is served through it from then on.
    QUIET = 10


cdef class Delivery(Order):
    """Messages that are written directly."""

    def __cinit__(self, **_):
        self._interest = Interest()
        self._core_interest = Interest()
        self._core_number = 1
        self._random = 2463534242

    cdef bint _deliver(self, Line* line, const char* payload, size_t size) noexcept nogil:
        """Give a message of the core to all here that want it; false: there are none."""
        cdef Connection* core = self._core
        cdef Subscription* one
        cdef size_t i
        cdef uint64_t generation
        if core == NULL or self.is_forbidden:
            return False
        if line.kind == HEADED and not (
            line.head >= 0 and core.has_headers and self._has_headers
        ):
            # The NATS server has something to say to that.
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
        if (
            not self._match(line.subject, line.subject_size)
            or self._interest.found_count == 0
            or self._are_shared()
        ):
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

    cdef bint _match(self, const char* subject, size_t size) noexcept nogil:
        """Find which clients want a message; false: nobody can say."""
        if self._interest.match(subject, size):
            if self._interest.steps <= MOST_STEPS and self._interest.queued <= MOST_QUEUED:
                return True
            # Somebody has subscribed so that each message takes long: the NATS server knows how to
            # live with that.
            self.is_crowded = True
            self._forbid()
            self._tell(b"crowd", -1)
        return False

    cdef bint _are_shared(self) noexcept nogil:
        """Whether everybody who was found may listen where others do."""
        cdef Subscription* one
        cdef size_t i
        for i in range(self._interest.found_count):
            one = self._interest.found[i]
            if not ((<Connection*>one.owner).is_shared or is_tap(one)):
                return False
        return True

    cdef void _look_for_others(self, Line* request) noexcept nogil:
        """A request has come through the NATS server. Who listens here for its answer has not sent
        it, unless something of it may be on that way: it is a tap, or what is left here of a client
        that has gone to another NATS server. What the core sends must reach the other one.
        """
        cdef Connection* c
        cdef size_t i
        if self.is_crowded or not self._match(request.other, request.other_size):
            return
        for i in range(self._interest.found_count):
            c = <Connection*>self._interest.found[i].owner
            if not (c.is_shared or may_have_asked(c)):
                c.is_shared = True
                # It may be the one that is remembered.
                self._interest.generation += 1

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

    # ---- writing a message

    cdef void _give(
        self, Subscription* whose, Line* line, const char* payload, size_t size
    ) noexcept nogil:
        """Write a message for one subscription."""
        cdef Connection* c = <Connection*>whose.owner
        cdef size_t most = line.subject_size + whose.sid_size + line.other_size + 64 + size
        cdef bint is_headed = line.kind == HEADED and line.head > 0 and c.has_headers
        #: Who cannot read headers gets none.
        cdef long long left_out = line.head if line.kind == HEADED and not is_headed else 0
        cdef Queue* said = &c.late if c.is_behind else &c.said
        cdef char* at
        cdef char* start
        if c.is_gone or c.is_cut or c.is_up_gone:
            return
        if not c.is_core and waiting(&c.said) + waiting(&c.late) + most > self._max_pending:
            self._cut(c)
            self._touch(c)
            return
        start = room(said, most)
        if start == NULL:
            self._cut(c)
            self._touch(c)
            return
        at = start
        if is_headed:
            at[0] = c'H'
            at += 1
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
        if is_headed:
            at = write_number(at, line.head)
            at[0] = c' '
            at += 1
        at = write_number(at, line.number - left_out)
        at[0] = c'\r'
        at[1] = c'\n'
        at += 2
        memcpy(at, payload + left_out, size - left_out)
        at += size - left_out
        said.end += at - start
        if not c.is_behind:
            note_given(self, c, whose)
            self._touch(c)

    cdef void _withdraw(self, Connection* c, Subscription* whose) noexcept nogil:
        """Its limit is reached; the NATS server has counted fewer, and may send more meanwhile."""
        if c.is_verbose:
            # What it says to that is not for the client.
            self._hush(c)
        put(&c.said_up, b"UNSUB ", 6)
        put(&c.said_up, whose.sid, whose.sid_size)
        put(&c.said_up, b"\r\n", 2)
        if c.is_verbose:
            self._hush(c)
        put(&c.ended, <const char*>&whose.sid_hash, sizeof(uint64_t))
        self._forget(c, whose)
        self._ask_of_ended(c)

    cdef void _release(self, Connection* c) noexcept nogil:
        """Hand on what the core has said meanwhile."""
        cdef Line line
        cdef Subscription* which
        cdef size_t whole
        cdef size_t used = 0
        c.is_behind = False
        self._may_resume = True
        while used < waiting(&c.late):
            read_server_line(first(&c.late) + used, waiting(&c.late) - used, &line)
            whole = line.size + line.number + 2
            which = self._interest.of_sid(&c.owner, line.sid, line.sid_size)
            if which != NULL:
                if not put(&c.said, first(&c.late) + used, whole):
                    self._cut(c)
                    return
                note_given(self, c, which)
            used += whole
        drop(&c.late)

    # ---- subscriptions

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


cdef bint is_tap(const Subscription* one) noexcept nogil:
    """Whether it listens to what is said to others: to everything, or to all inboxes."""
    return one.is_wild and (
        one.literal == 0
        or (one.literal == INBOXES_SIZE and memcmp(one.subject, b"_INBOX", INBOXES_SIZE) == 0)
    )


cdef bint may_have_asked(Connection* c) noexcept nogil:
    """Whether a request of this connection may still be on its way through the NATS server."""
    if c.hold == CORE_FENCE or waiting(&c.late) > 0:
        # What it has sent has not all come; what is kept for it comes before all that follows.
        return True
    return c.quiet < QUIET and (c.is_stale or c.is_passing or c.passed_at != 0)


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


cdef inline void note_given(
    Delivery self, Connection* c, Subscription* whose
) noexcept nogil:
    """It has been written, past what the NATS server counts."""
    if c.is_core:
        self.direct_in += 1
    else:
        self.direct_out += 1
    whose.delivered += 1
    whose.direct += 1
    if whose.most > 0 and whose.delivered >= whose.most:
        self._withdraw(c, whose)
