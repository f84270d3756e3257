"""What goes which way between clients, the core and the NATS server; the sockets are those of
``loop.pyx``.

What passes is handed on in whole lines and messages, so that a line of ours can be put between two
of them at any time. Order is kept although there are two roads (``order.pyx``). The core does not
publish what it subscribes to. A message for the core that others here want as well goes through the
NATS server, which gives it to all of them. So does a message of the core that nobody here wants
but who may listen together with clients of other NATS servers (``is_shared``). Nobody is heard whom
the NATS server has not let in.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcmp

from ftstan.front.connection cimport (
    ACCEPTANCE,
    CATCH_UP,
    CORE_ROOM,
    FENCE,
    FREE,
    VERDICT,
    Connection,
)
from ftstan.front.connections cimport CORE_MOST, CORE_SHARE, CORE_SHARES, Command
from ftstan.front.delivery cimport Delivery
from ftstan.front.interest cimport Subscription, is_subject
from ftstan.front.kernel cimport front_find, front_hold, front_ms
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
from ftstan.front.queue cimport put, waiting
from ftstan.front.tls cimport GREETING, PLAIN

cdef enum:
    #: Of a line that has no end yet, beside its words.
    ROOM_FOR_BLANKS = 1024
    #: Bytes of ``"max_payload":``.
    MAX_PAYLOAD_SIZE = 14
    #: Until the core counts as hanging (ms).
    HANGING = 1000


cdef class Switch(Delivery):
    """The listener."""

    cdef size_t _max_line
    cdef size_t _max_payload
    cdef readonly uint64_t passed_in
    cdef readonly uint64_t passed_out

    def __cinit__(self, *, int max_line, **_):
        """``max_line``: bytes of a line's argument that the NATS server takes."""
        self._max_line = max_line
        self._max_payload = 1 << 20

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
        elif command.what == c'R':
            self._core_room = command.number
            if self._core != NULL:
                front_hold(self._core.fd, command.number)

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
        front_hold(fd, self._core_room)
        # Whoever waited for the former waits for nothing.
        self._tickets_asked = self._tickets_done = self._tickets
        self._core_asked = self._core_read = self._core_passed
        self._may_resume = True
        self._touch(c)

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
                c.quiet = 0
                self.passed_in += 1
            elif line.kind == HEADED:
                self._publish_headed(c, &line)
                c.quiet = 0
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

    cdef void _judge_no_more(self, Connection* c) noexcept nogil:
        self._be_raw(c)
        self._set_hold(c, FREE)
        self._go_on(c)

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
            if not self._match(line.subject, line.subject_size) or self._interest.found_count > 0:
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
        if not self._has_room(c):
            self._set_hold(c, CORE_ROOM)
            return -1
        c.given += line.size + line.number
        if c.remembered_for != NULL:
            self._give(c.remembered_for, line, payload, line.number + 2)
            return 1
        if self._core_interest.found_count == 1:
            self._remember(c, line, self._core_interest.found[0], generation)
        for i in range(self._core_interest.found_count):
            self._give(self._core_interest.found[i], line, payload, line.number + 2)
        return 1

    cdef bint _has_room(self, Connection* c) noexcept nogil:
        """Whether the core may be given more of a client's."""
        return self._has_share(c, waiting(&self._core.said))

    cdef bint _has_share(self, Connection* c, size_t held) noexcept nogil:
        """The same, where ``held`` bytes wait."""
        if held > CORE_MOST:
            return False
        if c.drained != self._drained:
            c.drained = self._drained
            c.given = 0
        if c.given < max(self._core_room // CORE_SHARES, CORE_SHARE):
            return True
        return held <= self._core_room and self._held_for_room == 0

    cdef bint _has_room_for_passed(self, size_t more, size_t size) noexcept nogil:
        """Whether the core may be given a message of the NATS server, with ``more`` bytes of such
        before it that do not wait there yet.

        They have a share as one client has. Where the core takes nothing at all, nobody is served
        better by that, and what the NATS server answers is behind them.
        """
        cdef Connection* core = self._core
        cdef size_t held = waiting(&core.said) + more
        if not (
            self._has_share(core, held)
            or self._is_last_word
            or (
                held < CORE_MOST + self._max_pending
                and front_ms() - self._drained_at > HANGING
            )
        ):
            return False
        core.given += size
        return True

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
                if c == self._core and not self._has_room_for_passed(used - kept, whole):
                    self._wait_with_passed(True)
                    break
                is_dropped = not self._count(c, &line)
                if not c.is_core:
                    self.passed_out += 1
                elif line.other_size > 0:
                    self._look_for_others(&line)
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

    cdef bint _pass(self, Connection* c, const char* data, size_t size) noexcept nogil:
        """Hand on to the NATS server; false: the connection has ended."""
        if not put(&c.said_up, data, size):
            self._end(c)
            return False
        return True


cdef bint is_said(Line* line, const char* key, char what) noexcept nogil:
    """Whether a login or a greeting has a key that is true (``what`` is ``t``) or false (``f``)."""
    cdef const char* end = line.argument + line.argument_size
    cdef const char* at = front_find(line.argument, line.argument_size, key)
    while at != NULL and at < end and (at[0] == c' ' or at[0] == c'\t' or at[0] == c':'):
        at += 1
    return at != NULL and at < end and at[0] == what
