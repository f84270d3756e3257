"""One client, and its connection to the NATS server; or the core, and its own."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from ftstan.front.interest cimport Owner, Subscription
from ftstan.front.queue cimport Queue
from ftstan.front.tls cimport Tls

cdef enum:
    #: Bytes of a subject that is remembered.
    REMEMBERED = 160

#: Why a connection is not read.
cdef enum Hold:
    FREE
    #: Until the NATS server has accepted it.
    ACCEPTANCE
    #: Until the core has taken more of what waits for it.
    CORE_ROOM
    #: Until the NATS server has answered our PING on it.
    FENCE
    #: Until the NATS server has answered our PING on the core's connection.
    CORE_FENCE
    #: Until it is known whether the NATS server is to judge what it publishes to the core.
    VERDICT
    #: Until what the core says to it directly need not wait any more.
    CATCH_UP


cdef struct Connection:
    #: First, so that a subscription's owner is its connection.
    Owner owner
    int fd
    int up
    uint32_t events
    uint32_t events_up
    #: From the client, not used yet; for it.
    Queue heard
    Queue said
    #: The same of the NATS server.
    Queue heard_up
    Queue said_up
    #: Of the client, and how far it is; ``said`` is not encrypted yet.
    void* ssl
    Tls tls
    #: Bytes at the beginning of ``said`` that go out as they are.
    size_t plain
    #: More has been read than was used: it is to be read again without waiting.
    int has_more
    #: Reading, or a handshake, waits until it can write.
    int wants_write
    #: Writing waits for what the client sends.
    int wants_read
    #: Those that are shaking, in the order in which they began.
    Connection* shaking_before
    Connection* shaking_after
    bint is_again
    Connection* next_again
    Hold hold
    #: Those that wait for room at the core, in the order in which they began to.
    Connection* held_before
    Connection* held_after
    uint64_t ticket
    #: It has waited for the core, and what it waited with may go.
    bint is_fenced
    bint is_core
    #: Bytes of it that were put with what waits for the core since ``drained`` was the listener's;
    #: of the core's own connection, what the NATS server had for it.
    size_t given
    uint64_t drained
    #: The NATS server has said something, and its socket is of our account.
    bint is_greeted
    #: The NATS server has accepted it.
    bint is_accepted
    #: It has sent one; what that says of itself: answers to each line are wanted, and messages
    #: with headers can be read.
    bint has_login
    bint is_verbose
    bint has_headers
    #: The NATS server is about to end it, and judges what comes.
    bint is_raw
    #: Nor does the listener understand what the NATS server says to it: that is TLS of the two.
    bint is_opaque
    #: Something was sent on it.
    bint has_sent
    #: What it publishes goes through the NATS server, for good.
    bint is_passing
    #: Somebody behind another NATS server has asked for an answer where it listens: it is not the
    #: only one, or not there any more.
    bint is_shared
    #: Hashes (8 bytes each) of the sids whose limit was reached, as long as messages for them may
    #: be on their way; bytes of those for which the PING under way is the answer.
    Queue ended
    size_t ended_asked
    #: Sent through the NATS server what the core may be about to hear.
    bint is_stale
    #: Seconds since it has published something through the NATS server.
    int quiet
    #: The number of the core's subscriptions when something was first sent through the NATS server
    #: since it has been asked; 0: nothing was.
    uint64_t passed_at
    #: PINGs of the client that are not answered; of them in front of ours; ours is under way.
    long long pings
    long long pings_before
    bint is_asking
    #: Behind the answer to that PING another one is to be sent: it came too early.
    bint asks_again
    #: PINGs that were sent to the NATS server, and those that it has answered.
    uint64_t pings_sent
    uint64_t pings_answered
    #: Numbers (8 bytes each) of PINGs of ours: an +OK between the answer to one and to the next is
    #: to a line of ours. One such pair is under way: ``is_hushed``.
    Queue hushed
    bint is_hushed
    #: The direct road is allowed again, and the NATS server may still have messages of the core for
    #: it: those that come directly are kept in ``late`` until it has answered the PING of that
    #: number (0: not sent yet).
    bint is_behind
    uint64_t catch_up
    #: Numbers (8 bytes each) of such PINGs of former times, which are not answered yet either.
    Queue catch_ups
    Queue late
    #: PINGs under way that were sent before its login: their answers say nothing of that.
    long long not_yet
    bint is_gone
    bint is_up_gone
    bint is_cut
    bint is_dead
    int64_t until
    bint is_dirty
    Connection* next_dirty
    Connection* next_dead
    Connection* before
    Connection* after
    #: The last subject published to, and who wanted it when ``remembered_at`` things had changed.
    uint64_t remembered_at
    size_t remembered_size
    Subscription* remembered_for
    char[REMEMBERED] remembered
