"""What keeps the order of two roads.

What one connection sends first through the NATS server and then directly could arrive the other way
round; before the road changes in this direction, the NATS server is asked (PING) on the connection
by which the former went, and on the one by which it comes, and the connection is not read until
both have answered. The other direction needs nothing.

Where the direct road was forbidden for a while, the NATS server may still have messages of the core
for every client. So it is asked on the core's connection, then on each client's, and what the core
says directly meanwhile is kept behind what comes from there. Nobody waits for a client that does
not read.

Clients send PINGs, too: whose an answer is follows from the order of all that were sent.
"""

from libc.stdint cimport uint64_t

from ftstan.front.connection cimport (
    ACCEPTANCE,
    CATCH_UP,
    CORE_FENCE,
    CORE_ROOM,
    FENCE,
    FREE,
    VERDICT,
    Connection,
)
from ftstan.front.connections cimport CORE_MOST
from ftstan.front.loop cimport Loop
from ftstan.front.queue cimport first, put, take, waiting


cdef class Order(Loop):
    """PINGs of the listener, and who waits for their answers."""

    cdef void _release(self, Connection* c) noexcept nogil:
        """Hand on what the core has said directly meanwhile."""

    # ---- PINGs of ours

    cdef void _ask(self, Connection* c) noexcept nogil:
        """Send a PING of ours, unless one is under way."""
        if c.is_asking:
            return
        c.is_asking = True
        c.pings_before = c.pings
        c.pings_sent += 1
        put(&c.said_up, b"PING\r\n", 6)
        self._touch(c)

    cdef void _hush(self, Connection* c) noexcept nogil:
        """Send a PING of which nobody but ``_is_own`` gets to know: one of a pair."""
        put(&c.said_up, b"PING\r\n", 6)
        c.pings_sent += 1
        put(&c.hushed, <const char*>&c.pings_sent, sizeof(uint64_t))

    cdef bint _is_own(self, Connection* c) noexcept nogil:
        """Whether this answer is to such a PING, or to that of ``_catch_up``."""
        c.pings_answered += 1
        if c.catch_up == c.pings_answered:
            if c.is_behind:
                self._release(c)
            return True
        if (
            waiting(&c.catch_ups) > 0
            and (<uint64_t*>first(&c.catch_ups))[0] == c.pings_answered
        ):
            take(&c.catch_ups, sizeof(uint64_t))
            return True
        if waiting(&c.hushed) == 0 or (<uint64_t*>first(&c.hushed))[0] != c.pings_answered:
            return False
        take(&c.hushed, sizeof(uint64_t))
        c.is_hushed = not c.is_hushed
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

    cdef void _ask_of_ended(self, Connection* c) noexcept nogil:
        """When the NATS server has answered, nothing is on its way any more for what has ended."""
        if waiting(&c.ended) > 0 and not c.is_asking:
            c.ended_asked = waiting(&c.ended)
            self._ask(c)

    # ---- what is held

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

    cdef void _resume(self) noexcept nogil:
        """Read on where there is nothing to wait for any more."""
        cdef Connection* c = self._all
        cdef Connection* following
        self._may_resume = False
        if self._is_returning and (
            self._core == NULL or self._return_ticket <= self._tickets_done
        ):
            self._catch_up()
        while c != NULL:
            following = c.after
            if c.hold != FREE and c.hold != CORE_ROOM and self._is_over_with(c):
                c.is_fenced = c.hold == CORE_FENCE
                self._set_hold(c, FREE)
                self._go_on(c)
                if not c.is_dead:
                    self._touch(c)
            c = following
        self._resume_for_room()

    cdef void _resume_for_room(self) noexcept nogil:
        """Who has waited longest for room at the core goes first, and each has its share."""
        cdef Connection* c
        cdef size_t left = self._held_for_room
        while left > 0 and self._held_first != NULL and self._is_over_with(self._held_first):
            left -= 1
            c = self._held_first
            self._set_hold(c, FREE)
            self._go_on(c)
            if not c.is_dead:
                self._touch(c)
        if self._passed_waits:
            self._wait_with_passed(False)
            self._hear_on(self._core)
            if self._core != NULL:
                self._touch(self._core)

    cdef bint _is_over_with(self, Connection* c) noexcept nogil:
        """Whether what it is held for has come."""
        if c.hold == ACCEPTANCE:
            return c.is_accepted
        if c.hold == VERDICT:
            return not self._is_doubtful
        if c.hold == CATCH_UP:
            return not c.is_behind
        if self._core == NULL:
            return True
        if c.hold == CORE_ROOM:
            if not self._is_on or self.is_forbidden:
                return True
            return waiting(&self._core.said) <= CORE_MOST
        if c.hold == CORE_FENCE:
            return c.ticket <= self._tickets_done
        return not c.is_asking

    # ---- the direct road is forbidden, and allowed again

    cdef void _forbid(self) noexcept nogil:
        cdef Connection* c = self._all
        self.is_forbidden = True
        self._may_resume = True
        self._set_returning(False)
        while c != NULL:
            if c.is_behind:
                c.is_behind = False
                if waiting(&c.late) > 0:
                    # It was allowed a moment ago. What the core says from now on would come before
                    # that, and that would come before what the NATS server still has.
                    c.is_cut = True
                    self._touch(c)
            c = c.after

    cdef void _allow(self) noexcept nogil:
        cdef Connection* c = self._all
        if not self.is_forbidden or self.is_crowded:
            return
        self.is_forbidden = False
        while c != NULL:
            if c.is_accepted and not c.is_core:
                c.is_behind = True
                if c.catch_up > c.pings_answered:
                    # Its answer is still to come, and not the client's.
                    put(&c.catch_ups, <const char*>&c.catch_up, sizeof(uint64_t))
                c.catch_up = 0
            c = c.after
        self._set_returning(True)
        self._may_resume = True
        self._return_ticket = 0
        if self._core != NULL and self._core_passed > self._core_read:
            self._tickets += 1
            self._return_ticket = self._tickets
            if not self._core.is_asking:
                self._ask_core()

    cdef void _set_returning(self, bint on) noexcept nogil:
        # Something waits for the core, as connections that are held do.
        if on != self._is_returning:
            self._is_returning = on
            self._held += 1 if on else -1

    cdef void _catch_up(self) noexcept nogil:
        """The NATS server has handed on all of the core's: what it has of that for a client comes
        before the answer to the next PING.
        """
        cdef Connection* c = self._all
        self._set_returning(False)
        while c != NULL:
            if c.is_behind and c.catch_up == 0 and not c.is_gone and not c.is_up_gone:
                put(&c.said_up, b"PING\r\n", 6)
                c.pings_sent += 1
                c.catch_up = c.pings_sent
                self._touch(c)
            c = c.after
