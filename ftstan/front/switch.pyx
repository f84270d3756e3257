"""What goes which way between clients, the core and the NATS server; the sockets are those of
``connections.pyx``.

What passes is handed on in whole lines and messages, so that a line of ours can be put between two
of them at any time.

Order is kept although there are two roads. What one connection sends first through the NATS server
and then directly could arrive the other way round; before the road changes in this direction, the
NATS server is asked (PING) on the connection by which the former went, and on the one by which it
comes, and the connection is not read until both have answered. The other direction needs nothing.
The core does not publish what it subscribes to.
A message for the core that others here want as well goes through the NATS server, which gives it to
all of them.

Where the direct road was forbidden for a while, the NATS server may still have messages of the core
for every client. So it is asked on the core's connection, then on each client's, and what the core
says directly meanwhile is kept behind what comes from there. Nobody waits for a client that does
not read.

Nothing is ever said for the core but what it has written itself, which it does behind *confirm*
(``docs/architecture.md``); and nobody is heard or given anything whom the NATS server has not let
in.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from ftstan.front.connection cimport (
    ACCEPTANCE,
    CATCH_UP,
    CORE_FENCE,
    CORE_ROOM,
    FENCE,
    FREE,
    REMEMBERED,
    VERDICT,
    Connection,
    Hold,
)
from ftstan.front.connections cimport CORE_MOST, Command, Connections
from ftstan.front.interest cimport Interest, Subscription, is_subject
from ftstan.front.kernel cimport front_find
from ftstan.front.lines cimport (
    CONNECT,
    HEADED,
    INFO,
    MESSAGE,
    OK,
    PARTIAL,
    PING,
    PONG,
    SUB,
    UNSUB,
    WRONG,
    Line,
    read_client_line,
    read_server_line,
)
from ftstan.front.queue cimport Queue, drop, first, put, room, take, waiting
from ftstan.front.tls cimport GREETING, PLAIN

cdef enum:
    #: Subscriptions that are looked at for one message.
    MOST_STEPS = 4096
    #: Members of queue groups among which one message looks for its own.
    MOST_QUEUED = 64
    #: Of a line that has no end yet, beside its words.
    ROOM_FOR_BLANKS = 1024
    #: Bytes of ``"max_payload":``.
    MAX_PAYLOAD_SIZE = 14


cdef class Switch(Connections):
    """The listener."""

    #: What clients subscribe to, and the core.
    cdef Interest _interest
    cdef Interest _core_interest
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
    cdef size_t _max_line
    cdef size_t _max_payload
    #: The NATS server takes messages with headers.
    cdef bint _has_headers
    #: The core's subscriptions so far, one more.
    cdef uint64_t _core_number
    #: Messages of the core that went through the NATS server; those it has certainly read.
    cdef uint64_t _core_passed
    cdef uint64_t _core_read
    cdef uint64_t _core_asked
    #: Tickets for the answer to a PING on the core's connection: given out, asked for, answered.
    cdef uint64_t _tickets
    cdef uint64_t _tickets_asked
    cdef uint64_t _tickets_done
    cdef uint32_t _random
    cdef readonly uint64_t direct_in
    cdef readonly uint64_t direct_out
    cdef readonly uint64_t passed_in
    cdef readonly uint64_t passed_out

    def __cinit__(self, *, int max_line, **_):
        """``max_line``: bytes of a line's argument that the NATS server takes."""
        self._interest = Interest()
        self._core_interest = Interest()
        self._max_line = max_line
        self._max_payload = 1 << 20
        self._core_number = 1
        self._random = 2463534242

    # ---- commands

    cdef void _carry_out(self, Command* command) noexcept nogil:
        if command.what == c'C':
            self._attach(command.number, command.other)
        elif command.what == c'D':
            self._is_on = command.number != 0
            self._may_resume = True
        elif command.what == c'F':
            self._forbid()
        elif command.what == c'A':
            self._allow()
        elif command.what == c'H':
            self._is_doubtful = command.number != 0
            self._may_resume = True
        elif command.what == c'M':
            self._max_line = command.number

    cdef void _attach(self, int fd, int up) noexcept nogil:
        """The core has connected: ``fd`` is our end of its socket pair, ``up`` its connection to
        the NATS server.
        """
        cdef Connection* c
        if self._core != NULL:
            self._end(self._core)
        c = self._new(fd, up)
        if c == NULL:
            return
        c.is_core = True
        self._core = c
        # Whoever waited for the former waits for nothing.
        self._tickets_asked = self._tickets_done = self._tickets
        self._core_asked = self._core_read = self._core_passed
        self._may_resume = True
        self._touch(c)

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
                self._note_given(c, which)
            used += whole
        drop(&c.late)

    # ---- from the core

    cdef size_t _from_core(self, Connection* c, const char* data, size_t size) noexcept nogil:
        """Use what the core has sent; returns how much of it."""
        cdef Line line
        cdef Subscription* ended
        cdef size_t used = 0
        #: From where nothing has been handed on yet.
        cdef size_t kept = 0
        cdef size_t whole
        while used < size:
            read_client_line(data + used, size - used, True, &line)
            if line.kind == PARTIAL:
                break
            if line.kind == WRONG:
                # Where its next line begins is not known any more.
                self._end(c)
                return size
            whole = line.size
            if line.kind == MESSAGE or line.kind == HEADED:
                whole += line.number + 2
                if size - used < whole:
                    break
            if (line.kind == MESSAGE or line.kind == HEADED) and self._deliver(
                &line, data + used + line.size, line.number + 2
            ):
                if not self._pass(c, data + kept, used - kept):
                    return size
                used += whole
                kept = used
                continue
            if line.kind == MESSAGE or line.kind == HEADED:
                self._core_passed += 1
            elif line.kind == SUB:
                self._core_number += 1
                self._subscribe(c, &line)
                if c.is_dead:
                    return size
            elif line.kind == UNSUB:
                ended = self._unsubscribe(c, &line)
                if ended != NULL:
                    self._forget(c, ended)
            elif line.kind == PING:
                c.pings += 1
                c.pings_sent += 1
            elif line.kind == CONNECT:
                c.has_headers = is_said(&line, b'"headers"', c't')
            used += whole
        self._pass(c, data + kept, used - kept)
        return used

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
        if not self._match(line) or self._interest.found_count == 0:
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

    cdef bint _match(self, Line* line) noexcept nogil:
        """Find which clients want a message; false: nobody can say."""
        if self._interest.match(line.subject, line.subject_size):
            if self._interest.steps <= MOST_STEPS and self._interest.queued <= MOST_QUEUED:
                return True
            # Somebody has subscribed so that each message takes long: the NATS server knows how to
            # live with that.
            self.is_crowded = True
            self._forbid()
            self._tell(b"crowd", -1)
        return False

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
            self._note_given(c, whose)
            self._touch(c)

    cdef inline void _note_given(self, Connection* c, Subscription* whose) noexcept nogil:
        if c.is_core:
            self.direct_in += 1
        else:
            self.direct_out += 1
        whose.delivered += 1
        whose.direct += 1
        if whose.most > 0 and whose.delivered >= whose.most:
            self._withdraw(c, whose)

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
        if waiting(&c.hushed) == 0 or (<uint64_t*>first(&c.hushed))[0] != c.pings_answered:
            return False
        take(&c.hushed, sizeof(uint64_t))
        c.is_hushed = not c.is_hushed
        return True

    cdef void _ask_of_ended(self, Connection* c) noexcept nogil:
        """When the NATS server has answered, nothing is on its way any more for what has ended."""
        if waiting(&c.ended) > 0 and not c.is_asking:
            c.ended_asked = waiting(&c.ended)
            self._ask(c)

    cdef bint _pass(self, Connection* c, const char* data, size_t size) noexcept nogil:
        """Hand on to the NATS server; false: the connection has ended."""
        if not put(&c.said_up, data, size):
            self._end(c)
            return False
        return True

    # ---- from clients

    cdef size_t _from_client(self, Connection* c, const char* data, size_t size) noexcept nogil:
        """Use what a client has sent; returns how much of it. It may be held before the end."""
        cdef Line line
        cdef Subscription* ended
        cdef size_t used = 0
        cdef size_t kept = 0
        cdef size_t whole
        cdef int verdict
        if c.is_core:
            return self._from_core(c, data, size)
        while used < size and c.hold == FREE and not c.is_raw:
            read_client_line(data + used, size - used, False, &line)
            if line.kind == WRONG or line.argument_size > self._max_line:
                self._be_raw(c)
                break
            if line.kind == PARTIAL:
                if size - used > self._max_line + ROOM_FOR_BLANKS:
                    self._be_raw(c)
                break
            whole = line.size
            if line.kind == MESSAGE or line.kind == HEADED:
                if <size_t>line.number > self._max_payload:
                    self._be_raw(c)
                    break
                whole += line.number + 2
                if size - used < whole:
                    break
                if data[used + whole - 2] != c'\r' or data[used + whole - 1] != c'\n':
                    self._be_raw(c)
                    break
            if c.is_behind and (line.kind == SUB or line.kind == PING):
                # What was kept for it is not for this subscription, and comes before this answer.
                self._set_hold(c, CATCH_UP)
                break
            if line.kind == PING:
                c.pings += 1
                c.pings_sent += 1
            elif line.kind == CONNECT:
                # A second one has the NATS server forget what was subscribed to before.
                self._forget_all(c)
                c.has_login = True
                # Whatever comes behind it is judged anew.
                c.is_accepted = False
                c.not_yet = c.pings + c.is_asking
                c.has_headers = is_said(&line, b'"headers"', c't')
                # What it leaves out is true.
                c.is_verbose = not is_said(&line, b'"verbose"', c'f')
                if c.is_verbose or not is_said(&line, b'"pedantic"', c'f'):
                    # The NATS server has a word to say on each message.
                    self._be_passing(c)
            elif not c.is_accepted and line.kind != PONG:
                if not self._pass(c, data + kept, used - kept):
                    return size
                kept = used
                self._set_hold(c, ACCEPTANCE)
                if c.pings + c.is_asking == c.not_yet:
                    self._ask(c)
                break
            elif line.kind == MESSAGE:
                c.is_fenced = False
                if not c.has_login:
                    # So it has for who does not log in.
                    self._be_passing(c)
                verdict = self._publish(c, &line, data + used + line.size)
                if verdict < 0:
                    if not self._pass(c, data + kept, used - kept):
                        return size
                    kept = used
                    if c.hold == FENCE:
                        # Behind all that it has sent.
                        c.asks_again = c.is_asking
                        self._ask(c)
                    break
                if verdict > 0:
                    if not self._pass(c, data + kept, used - kept):
                        return size
                    used += whole
                    kept = used
                    continue
                self.passed_in += 1
            elif line.kind == HEADED:
                self._publish_headed(c, &line)
                self.passed_in += 1
            elif line.kind == SUB:
                # From here on the core's messages come directly.
                self._subscribe(c, &line)
                if c.is_dead:
                    return size
                if (
                    self._core != NULL
                    and self._core_passed > self._core_read
                    and not c.is_fenced
                    and not self.is_forbidden
                ):
                    # What it has sent through the NATS server, to nobody, must not come behind
                    # them: the NATS server learns of the subscription when it has read that.
                    self._wait_for_core(c)
                    break
                c.is_fenced = False
            elif line.kind == UNSUB:
                ended = self._unsubscribe(c, &line)
                if ended != NULL:
                    used += whole
                    if not self._pass(c, data + kept, used - kept):
                        return size
                    kept = used
                    self._withdraw(c, ended)
                    continue
            used += whole
        if c.is_raw:
            used = size
        self._pass(c, data + kept, used - kept)
        return used

    cdef void _be_passing(self, Connection* c) noexcept nogil:
        if not c.is_passing:
            c.is_passing = True
            self.passing += 1

    cdef void _be_raw(self, Connection* c) noexcept nogil:
        """The NATS server will end it: nothing of what comes is looked at any more."""
        c.is_raw = True
        self._be_passing(c)
        self._forget_all(c)

    cdef int _publish(self, Connection* c, Line* line, const char* payload) noexcept nogil:
        """1: the core has it, 0: it goes through the NATS server, -1: not now."""
        cdef Connection* core = self._core
        cdef Subscription* one
        cdef size_t i
        cdef uint64_t since = 0
        cdef uint64_t generation
        cdef bint is_wild
        if not self._is_on or self.is_forbidden or core == NULL or not core.is_accepted:
            c.is_stale = True
            return 0
        if c.is_passing:
            return 0
        generation = self._interest.generation + self._core_interest.generation
        if (
            c.remembered_for == NULL
            or c.remembered_at != generation
            or c.remembered_size != line.subject_size
            or memcmp(c.remembered, line.subject, line.subject_size) != 0
        ):
            c.remembered_for = NULL
            if not self._core_interest.match(line.subject, line.subject_size):
                c.is_stale = True
                return 0
            if self._core_interest.found_count == 0:
                self._note_passed(c)
                if not is_subject(line.subject, line.subject_size, &is_wild) or is_wild:
                    # It is complained of, and may be delivered all the same.
                    c.is_stale = True
                return 0
            for i in range(self._core_interest.found_count):
                one = self._core_interest.found[i]
                if one.queue_size > 0 or one.most > 0:
                    c.is_stale = True
                    return 0
                since = max(since, one.since)
            if not self._match(line) or self._interest.found_count > 0:
                c.is_stale = True
                return 0
        else:
            since = c.remembered_for.since
        if c.is_stale or (c.passed_at != 0 and c.passed_at < since):
            self._set_hold(c, FENCE)
            return -1
        if self._is_doubtful:
            self._set_hold(c, VERDICT)
            return -1
        if waiting(&core.said) > CORE_MOST:
            self._set_hold(c, CORE_ROOM)
            return -1
        if c.remembered_for != NULL:
            self._give(c.remembered_for, line, payload, line.number + 2)
            return 1
        if self._core_interest.found_count == 1:
            self._remember(c, line, self._core_interest.found[0], generation)
        for i in range(self._core_interest.found_count):
            self._give(self._core_interest.found[i], line, payload, line.number + 2)
        return 1

    cdef void _publish_headed(self, Connection* c, Line* line) noexcept nogil:
        """A message with headers goes through the NATS server, and with it what follows."""
        if self._core == NULL or not self._is_on:
            c.is_stale = True
        elif (
            not self._core_interest.match(line.subject, line.subject_size)
            or self._core_interest.found_count > 0
        ):
            self._be_passing(c)
        self._note_passed(c)

    cdef void _note_passed(self, Connection* c) noexcept nogil:
        if c.passed_at == 0:
            c.passed_at = self._core_number

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

    # ---- from the NATS server

    cdef size_t _from_server(self, Connection* c, const char* data, size_t size) noexcept nogil:
        """Use what the NATS server has sent; returns how much of it."""
        cdef Line line
        cdef size_t used = 0
        cdef size_t kept = 0
        cdef size_t whole
        cdef bint is_dropped
        if c.is_opaque:
            used = size
        while used < size:
            read_server_line(data + used, size - used, &line)
            if line.kind == PARTIAL:
                break
            if line.kind == WRONG and c.is_raw:
                # It has no subscriptions: nothing of ours comes in between.
                c.is_opaque = True
                used = size
                break
            if line.kind == WRONG:
                # Where its next line begins is not known any more: a message of the core would
                # come in the middle of something.
                self._end(c)
                return size
            whole = line.size
            is_dropped = False
            if line.kind == MESSAGE or line.kind == HEADED:
                whole += line.number + 2
                if size - used < whole:
                    break
                is_dropped = not self._count(c, &line)
                if not c.is_core:
                    self.passed_out += 1
            elif line.kind == PONG:
                if c.is_behind:
                    # It may be what is kept that comes next.
                    put(&c.said, data + kept, used - kept)
                    kept = used
                is_dropped = self._is_own(c) or self._ponged(c)
            elif line.kind == OK:
                is_dropped = c.is_hushed
            elif line.kind == INFO:
                self._learn(&line)
                if c.tls != PLAIN:
                    put(&c.said, data + kept, used - kept)
                    self._demand_tls(c, data + used, whole)
                    kept = used + whole
                    if c.tls == GREETING:
                        self._greet(c)
            if is_dropped:
                put(&c.said, data + kept, used - kept)
                kept = used + whole
            used += whole
        if not put(&c.said, data + kept, used - kept):
            self._end(c)
        return used

    cdef void _demand_tls(self, Connection* c, const char* info, size_t size) noexcept nogil:
        """Hand on an INFO of a NATS server that knows nothing of TLS, where it would say so."""
        cdef const char* at = front_find(info, size, b'"max_payload":')
        cdef size_t before = at - info - MAX_PAYLOAD_SIZE if at != NULL else 0
        put(&c.said, info, before)
        if at != NULL and front_find(info, size, b'"tls_required":') == NULL:
            put(&c.said, b'"tls_required":true,', 20)
        put(&c.said, info + before, size - before)

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

    cdef void _learn(self, Line* line) noexcept nogil:
        cdef const char* at = front_find(line.argument, line.argument_size, b'"max_payload":')
        cdef size_t payload = 0
        self._has_headers = is_said(line, b'"headers"', c't')
        if at != NULL:
            while c'0' <= at[0] <= c'9':
                payload = payload * 10 + (at[0] - c'0')
                at += 1
            if payload > 0:
                self._max_payload = payload

    # ---- order

    cdef void _ask(self, Connection* c) noexcept nogil:
        """Send a PING of ours, unless one is under way."""
        if c.is_asking:
            return
        c.is_asking = True
        c.pings_before = c.pings
        c.pings_sent += 1
        put(&c.said_up, b"PING\r\n", 6)
        self._touch(c)

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
            if c.hold != FREE and self._is_over_with(c):
                c.is_fenced = c.hold == CORE_FENCE
                self._set_hold(c, FREE)
                self._go_on(c)
                if not c.is_dead:
                    self._touch(c)
            c = following

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
            return waiting(&self._core.said) <= CORE_MOST // 2
        if c.hold == CORE_FENCE:
            return c.ticket <= self._tickets_done
        return not c.is_asking


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


cdef bint is_said(Line* line, const char* key, char what) noexcept nogil:
    """Whether a login or a greeting has a key that is true (``what`` is ``t``) or false (``f``)."""
    cdef const char* end = line.argument + line.argument_size
    cdef const char* at = front_find(line.argument, line.argument_size, key)
    while at != NULL and at < end and (at[0] == c' ' or at[0] == c'\t' or at[0] == c':'):
        at += 1
    return at != NULL and at < end and at[0] == what
