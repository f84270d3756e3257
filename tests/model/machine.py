"""Histories of clients, messages and servers: every rule is one thing that happens, and is checked against the reference.

Rules take small numbers: ``which`` counts round the live subscriptions, oldest first. A failing history is printed as a
script of such lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ftstan.wire import messages
from ftstan.wire.messages import StartPosition
from tests.compat.driver import SUBJECTS, connect_request, deliveries, pub_acks, pub_msg
from tests.model.reference import PROBE_TIMEOUT, Client, Member, Reference, Request
from tests.model.servers import FileServers, MemoryServers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.compat.driver import Out

KINDS = st.sampled_from(["plain", "durable", "queue", "durable queue"])
CLIENTS = st.sampled_from([b"ann", b"bob", b"cat"])
CHANNELS = st.sampled_from([b"foo", b"foo", b"foo", b"bar"])
WINDOWS = st.sampled_from([1, 2, 3, 5, 100])
ACK_WAITS = st.sampled_from([1, 2, 3, 7])
DOWN = st.sampled_from([0.0, 1.5, 20.0])
WHICH = st.integers(0, 7)
ODD, EVEN = 0.0037, 0.05
NAMES = {
    "plain": (b"", b""),
    "durable": (b"dur", b""),
    "queue": (b"", b"grp"),
    "durable queue": (b"dur", b"grp"),
}
POSITIONS = {
    "first": (StartPosition.FIRST, 0, 0.0),
    "new only": (StartPosition.NEW_ONLY, 0, 0.0),
    "last received": (StartPosition.LAST_RECEIVED, 0, 0.0),
    "sequence 3": (StartPosition.SEQUENCE_START, 3, 0.0),
    "sequence 0": (StartPosition.SEQUENCE_START, 0, 0.0),
    "2 seconds ago": (StartPosition.TIME_DELTA_START, 0, 2.003),
    "0 seconds ago": (StartPosition.TIME_DELTA_START, 0, 0.0),
}
STARTS = st.sampled_from(list(POSITIONS))


class MemoryMachine(RuleBasedStateMachine):
    """Everything that can happen to one server."""

    make_servers: ClassVar[Callable[[], MemoryServers]] = MemoryServers

    def __init__(self) -> None:
        super().__init__()
        self.servers = self.make_servers()
        self.reference = Reference()
        self.serial = 0
        self.read = 0
        """How much of what left the server was looked at."""
        self.ended: list[Member] = []

    # Watching

    def _watch(self) -> list[Out]:
        """Check what left since the last look."""
        out = self.servers.driver.out[self.read :]
        self.read += len(out)
        inboxes = {c.hb_inbox: c for c in self.reference.clients.values()}
        for o in out:
            at = self.servers.started + o.at
            if o.subject.startswith(b"in."):
                (message,) = deliveries([o], o.subject)
                self.reference.delivered(o.subject, message, at)
            elif o.subject.startswith(b"hb."):
                assert o.subject in inboxes, "a heartbeat to a client that is not registered"
                self.reference.heartbeat(inboxes[o.subject], at)
        return out

    def _call(self, subject: str, payload: bytes) -> bytes:
        answer = self.servers.driver.call(subject, payload)
        assert answer is not None, "no answer"
        return answer

    def _fresh(self, name: bytes) -> bytes:
        self.serial += 1
        return b"%b.%d" % (name, self.serial)

    def _member(self, which: int) -> Member:
        members = self.reference.members
        return members[which % len(members)]

    @invariant()
    def everything_that_was_due_has_left(self) -> None:
        self._watch()
        before = list(self.reference.members)
        self.reference.settle(self.servers.now)
        self.ended += [m for m in before if m not in self.reference.members]

    @invariant()
    def the_server_has_the_clients_and_subscriptions_of_the_reference(self) -> None:
        driver = self.servers.driver
        heard = {subject for subject in driver.subs.values() if subject.startswith(b"_INBOX.") and len(subject) == 29}
        assert heard == {m.ack_inbox for m in self.reference.members}
        assert {c.client_id for c in driver.broker.clients.values()} == set(self.reference.clients)

    # Clients

    @initialize(kinds=st.lists(KINDS, max_size=5), window=WINDOWS)
    def two_clients_subscribe(self, kinds: list[str], window: int) -> None:
        self.connects(b"ann")
        self.connects(b"bob")
        for i, kind in enumerate(kinds):
            self.subscribes(i, b"foo", kind, "first", window, 2)

    @rule(client=CLIENTS)
    def connects(self, client: bytes) -> None:
        """A client whose id is taken waits for the probe of the one that has it."""
        driver, reference = self.servers.driver, self.reference
        new = Client(client, self._fresh(b"hb"), self._fresh(b"conn"), 0.0)
        # A probe must not end in the instant in which something else is due: their order would be open.
        driver.wait(ODD)
        self._watch()
        old = reference.clients.get(client)
        reply = driver.reply()
        driver.frame(SUBJECTS.discovery, connect_request(client, new.hb_inbox, new.conn_id), reply)
        driver.alive.add(new.hb_inbox)
        if old is None:
            out = driver.run()
            reference.connect(new, self.servers.now)
        else:
            out = self._probe(old, new)
        driver.wait(EVEN - ODD)
        self._watch()
        (answer,) = [messages.parse(messages.ConnectResponse, o.payload) for o in out if o.subject == reply]
        taken = old is not None and old.answers
        assert answer.error == (b"stan: clientID already registered" if taken else b"")

    def _probe(self, old: Client, new: Client) -> list[Out]:
        driver = self.servers.driver
        before, start = len(driver.out), self.servers.now
        if not old.answers:
            self.reference.later(start + PROBE_TIMEOUT * old.listens, lambda t: self.reference.connect(new, t))
        driver.run()
        (probe,) = [i for i in range(before, len(driver.out)) if driver.out[i].subject == old.hb_inbox]
        driver.out.pop(probe)
        driver.wait(PROBE_TIMEOUT)
        return driver.out[before:]

    @precondition(lambda self: self.reference.clients)
    @rule(which=WHICH, how=st.sampled_from(["answers", "is silent", "does not listen"]))
    def client_now(self, which: int, how: str) -> None:
        """What becomes of heartbeats from now on."""
        driver, client = self.servers.driver, self._client(which)
        client.answers, client.listens = how == "answers", how != "does not listen"
        (driver.alive.add if client.answers else driver.alive.discard)(client.hb_inbox)
        (driver.absent.discard if client.listens else driver.absent.add)(client.hb_inbox)

    def _client(self, which: int) -> Client:
        clients = list(self.reference.clients.values())
        return clients[which % len(clients)]

    @precondition(lambda self: self.reference.clients)
    @rule(which=WHICH)
    def pings(self, which: int) -> None:
        assert self.servers.driver.ping(self._client(which).conn_id) == b""

    @precondition(lambda self: len(self.reference.members) > 1)
    @rule(which=WHICH)
    def client_closes(self, which: int) -> None:
        client = self._client(which)
        assert self.servers.driver.close(client.client_id) == b""
        self.ended += [m for m in self.reference.members if m.client is client]
        self.reference.close(client.client_id, self.servers.now)

    @rule(channel=CHANNELS)
    def who_is_not_connected_is_refused(self, channel: bytes) -> None:
        assert self.servers.driver.ping(b"nobody") == b"client has been replaced or is no longer registered"
        assert self.servers.driver.close(b"nobody") == b"stan: unknown clientID"
        assert self._publish(b"nobody", channel, [b"guid"]) == {b"stan: invalid publish request"}
        assert self._subscribe(Request(b"nobody", channel)) == b"stan: unknown clientID"

    # Messages

    @precondition(lambda self: self.reference.clients)
    @rule(which=WHICH, channel=CHANNELS, count=st.integers(1, 4))
    def publishes(self, which: int, channel: bytes, count: int) -> None:
        guids = [self._fresh(b"message") for _ in range(count)]
        for guid in guids:
            self.reference.publish(channel, guid, self.servers.now)
        assert self._publish(self._client(which).conn_id, channel, guids) == {b""}

    def _publish(self, conn_id: bytes, channel: bytes, guids: list[bytes]) -> set[bytes]:
        """The errors; everything is acknowledged in the order in which it was published."""
        driver = self.servers.driver
        for guid in guids:
            payload = pub_msg(guid, channel, guid, conn_id=conn_id)
            driver.frame(f"{SUBJECTS.publish}.{channel.decode()}", payload, b"_STAN.acks.here")
        acks = pub_acks(driver.run())
        assert [a.guid for a in acks] == guids
        return {a.error for a in acks}

    # Subscriptions

    @precondition(lambda self: self.reference.clients)
    @rule(which=WHICH, channel=CHANNELS, kind=KINDS, start=STARTS, window=WINDOWS, ack_wait=ACK_WAITS)
    def subscribes(self, which: int, channel: bytes, kind: str, start: str, window: int, ack_wait: int) -> None:
        self._subscribe(Request(self._client(which).client_id, channel, *NAMES[kind], *POSITIONS[start], window, ack_wait))

    @precondition(lambda self: self.reference.clients)
    @rule(which=WHICH, kind=st.sampled_from(["queue", "durable queue"]), window=WINDOWS, ack_wait=ACK_WAITS)
    def joins(self, which: int, kind: str, window: int, ack_wait: int) -> None:
        self.subscribes(which, b"foo", kind, "first", window, ack_wait)

    def _subscribe(self, request: Request) -> bytes:
        """The error, which is that of the reference."""
        driver, inbox = self.servers.driver, self._fresh(b"in")
        answer = self._call(SUBJECTS.subscribe, messages.encode(_subscription_request(request, inbox)))
        response = messages.parse(messages.SubscriptionResponse, answer)
        assert response.error == self.reference.subscribe(request, inbox, response.ack_inbox, self.servers.now)
        left = [o.subject for o in driver.out[self.read :] if o.subject == inbox or o.payload == answer]
        assert inbox not in left[:1], "a message before the response"
        return response.error

    @precondition(lambda self: self.reference.members)
    @rule(which=WHICH, how=st.sampled_from(["unsubscribe", "close"]))
    def leaves(self, which: int, how: str) -> None:
        member = self._member(which)
        assert self._leave(member, how) == b""
        self.reference.leave(member, self.servers.now, unsubscribe=how == "unsubscribe")
        self.ended.append(member)

    def _leave(self, member: Member, how: str) -> bytes:
        subject = SUBJECTS.unsubscribe if how == "unsubscribe" else SUBJECTS.sub_close
        return self.servers.driver.leave(
            subject, member.ack_inbox, channel=member.line.channel, client_id=member.client.client_id
        ).error

    # Acks

    @precondition(lambda self: any(m.line.held(m) for m in self.reference.members))
    @rule(which=WHICH, nth=WHICH)
    def acks_what_it_has(self, which: int, nth: int) -> None:
        holders = [m for m in self.reference.members if m.line.held(m)]
        member = holders[which % len(holders)]
        held = member.line.held(member)
        self._ack(member, held[nth % len(held)])

    @precondition(lambda self: any(m.line.held(m) for m in self.reference.members))
    @rule(which=WHICH)
    def acks_all_it_has(self, which: int) -> None:
        holders = [m for m in self.reference.members if m.line.held(m)]
        member = holders[which % len(holders)]
        self._ack(member, *sorted(member.line.held(member)))

    @precondition(lambda self: self.reference.members)
    @rule(which=WHICH, sequence=st.integers(0, 12))
    def acks_anything(self, which: int, sequence: int) -> None:
        """What another member has, what was acknowledged before, or what was never sent."""
        self._ack(self._member(which), sequence)

    def _ack(self, member: Member, *sequences: int) -> None:
        for sequence in sequences:
            self.reference.ack(member, sequence)
        self.servers.driver.ack(member.ack_inbox, *sequences, channel=member.line.channel)

    @precondition(lambda self: self.ended)
    @rule(which=WHICH, sequence=st.integers(1, 12))
    def acks_and_leaves_when_it_has_ended(self, which: int, sequence: int) -> None:
        member = self.ended[which % len(self.ended)]
        self.servers.driver.ack(member.ack_inbox, sequence, channel=member.line.channel)
        assert self._leave(member, "close") == b"stan: invalid subscription"

    # Time and servers

    @rule(seconds=st.sampled_from([0.05, 0.1, 0.5, 1.0, 3.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.servers.driver.wait(seconds)
        self.servers.tick()


class ForgetfulMachine(MemoryMachine):
    """On the memory store: a restart forgets everything."""

    @precondition(lambda self: len(self.ended) > 2)
    @rule()
    def server_is_killed(self) -> None:
        self.servers.kill()
        self.read = 0
        self.reference = Reference()
        self.ended.clear()


class FileMachine(MemoryMachine):
    """On the file store: the next server goes on, with all that is a second old."""

    make_servers = FileServers
    servers: FileServers

    def _start(self, end: Callable[[], None], down: float = 0.0) -> None:
        """Another server starts when the present one has ended."""
        self._watch()
        self.servers.clock.advance(down)
        self.reference.advance(self.servers.now)
        end()
        self.read = 0
        self.reference.restart(self.servers.now)
        self.servers.driver.run()

    @rule(down=DOWN)
    def server_is_killed(self, down: float) -> None:
        self.time_passes(1.0)
        self._start(self.servers.kill, down)

    @rule(down=DOWN)
    def server_is_stopped(self, down: float) -> None:
        self._start(self.servers.stop, down)

    @rule(down=DOWN)
    def power_fails(self, down: float) -> None:
        self.time_passes(1.0)
        self._start(self.servers.lose_power, down)

    @precondition(lambda self: self.reference.clients)
    @rule(channel=st.sampled_from([b"late", b"foo"]))
    def another_server_takes_over(self, channel: bytes) -> None:
        """What the former owner is asked for is neither answered nor, once its successor has written, stored."""
        self.time_passes(1.0)
        if not self.reference.clients:
            return
        client = next(iter(self.reference.clients.values()))
        payload = pub_msg(b"late", channel, b"late", conn_id=client.conn_id)
        self._start(lambda: self.servers.fail_over(f"{SUBJECTS.publish}.{channel.decode()}", payload))
        if channel == b"foo":
            self.everything_that_was_due_has_left()
            self.publishes(0, channel, 1)


def _subscription_request(request: Request, inbox: bytes) -> messages.SubscriptionRequest:
    return messages.SubscriptionRequest(
        client_id=request.client_id,
        subject=request.channel,
        inbox=inbox,
        durable_name=request.durable,
        q_group=request.queue,
        start_position=request.start,
        start_sequence=request.sequence,
        start_time_delta=round(request.delta * 1e9),
        max_in_flight=request.window,
        ack_wait_in_secs=request.ack_wait,
    )
