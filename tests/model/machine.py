"""Histories of clients, messages and servers: every rule is one thing that happens, held to the
reference.

Rules take small numbers: ``which`` counts round the live subscriptions, oldest first. A failing
history is printed as a script of such lines.
"""

from __future__ import annotations

from dataclasses import replace
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
LATER = st.sampled_from([0.0, 7.0, 15.0])
ENDS = st.sampled_from(["unsubscribe", "close"])
FEW = st.integers(0, 2)
WHICH = st.integers(0, 7)
ODD = 0.0037
EVEN = 0.05
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

    kind: ClassVar[type[MemoryServers]] = MemoryServers

    def __init__(self) -> None:
        super().__init__()
        self.servers = self.kind()
        self.reference = Reference()
        self.serial = 0
        self.read = 0
        """How much of what left the server was looked at."""
        self.ended: list[Member] = []
        self.published: list[bytes] = []
        """What waits for its ack."""

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
        heard = {
            subject
            for subject in driver.subs.values()
            if subject.startswith(b"_INBOX.") and len(subject) == 29
        }
        assert heard == {m.ack_inbox for m in self.reference.members}
        assert {c.client_id for c in driver.broker.clients.values()} == set(self.reference.clients)

    # Clients

    @initialize(kinds=st.lists(KINDS, max_size=5), window=WINDOWS)
    def two_clients_subscribe(self, kinds: list[str], window: int) -> None:
        self.connects(b"ann")
        self.connects(b"bob")
        for i, kind in enumerate(kinds):
            self.subscribes(
                which=i, channel=b"foo", kind=kind, start="first", window=window, ack_wait=2
            )

    @rule(client=CLIENTS)
    def connects(self, client: bytes) -> None:
        """A client whose id is taken waits for the probe of the one that has it."""
        driver = self.servers.driver
        reference = self.reference
        new = Client(client, self._fresh(b"hb"), self._fresh(b"conn"), 0.0)
        # A probe must not end in the instant in which something else is due: their order would be
        # open.
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
        (answer,) = [
            messages.parse(messages.ConnectResponse, o.payload) for o in out if o.subject == reply
        ]
        taken = old is not None and old.answers
        assert answer.error == (b"stan: clientID already registered" if taken else b"")

    def _probe(self, old: Client, new: Client) -> list[Out]:
        driver = self.servers.driver
        before = len(driver.out)
        start = self.servers.now
        if not old.answers:
            self.reference.later(
                start + PROBE_TIMEOUT * old.listens, lambda t: self.reference.connect(new, t)
            )
        driver.run()
        (probe,) = [
            i for i in range(before, len(driver.out)) if driver.out[i].subject == old.hb_inbox
        ]
        driver.out.pop(probe)
        driver.wait(PROBE_TIMEOUT)
        return driver.out[before:]

    @precondition(lambda self: self.reference.clients)
    @rule(
        which=WHICH, how=st.sampled_from(["answers", "is silent", "does not listen"]), seconds=LATER
    )
    def client_now(self, which: int, how: str, seconds: float) -> None:
        """What becomes of heartbeats from now on, and some time."""
        driver = self.servers.driver
        client = self._client(which)
        client.answers = how == "answers"
        client.listens = how != "does not listen"
        (driver.alive.add if client.answers else driver.alive.discard)(client.hb_inbox)
        (driver.absent.discard if client.listens else driver.absent.add)(client.hb_inbox)
        self.time_passes(seconds)

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
        assert (
            self.servers.driver.ping(b"nobody")
            == b"client has been replaced or is no longer registered"
        )
        assert self.servers.driver.close(b"nobody") == b"stan: unknown clientID"
        self.published.append(b"refused")
        self._offer(channel, b"refused", b"nobody")
        self._acknowledged(b"stan: invalid publish request")
        assert self._subscribe(Request(b"nobody", channel)) == b"stan: unknown clientID"

    # Messages

    @precondition(lambda self: self.reference.clients)
    @rule(which=WHICH, channel=CHANNELS, count=st.integers(1, 4))
    def publishes(self, which: int, channel: bytes, count: int) -> None:
        self._publish(self._client(which), channel, count)
        self._acknowledged()

    def _publish(self, client: Client, channel: bytes, count: int) -> None:
        """Put messages into the next batch."""
        for _ in range(count):
            data = self._fresh(b"message")
            self.published.append(data)
            self.reference.publish(channel, data, self.servers.now)
            self._offer(channel, data, client.conn_id)

    def _offer(self, channel: bytes, data: bytes, conn_id: bytes) -> None:
        payload = pub_msg(data, channel, data, conn_id=conn_id)
        self.servers.driver.frame(
            f"{SUBJECTS.publish}.{channel.decode()}", payload, b"_STAN.acks.here"
        )

    def _acknowledged(self, error: bytes = b"") -> None:
        """The next batch answers all that was published, in the order in which it was."""
        acks = pub_acks(self.servers.driver.run())
        assert [(a.guid, a.error) for a in acks] == [(data, error) for data in self.published]
        self.published.clear()

    # Subscriptions

    @precondition(lambda self: self.reference.clients)
    @rule(
        which=WHICH, channel=CHANNELS, kind=KINDS, start=STARTS, window=WINDOWS, ack_wait=ACK_WAITS
    )
    def subscribes(
        self, *, which: int, channel: bytes, kind: str, start: str, window: int, ack_wait: int
    ) -> None:
        durable, queue = NAMES[kind]
        position, sequence, delta = POSITIONS[start]
        self._subscribe(
            Request(
                self._client(which).client_id,
                channel,
                durable,
                queue,
                position,
                sequence,
                delta,
                window,
                ack_wait,
            )
        )

    @precondition(lambda self: self.reference.clients)
    @rule(
        which=WHICH,
        kind=st.sampled_from(["queue", "durable queue"]),
        window=WINDOWS,
        ack_wait=ACK_WAITS,
    )
    def joins(self, which: int, kind: str, window: int, ack_wait: int) -> None:
        self.subscribes(
            which=which, channel=b"foo", kind=kind, start="first", window=window, ack_wait=ack_wait
        )

    @precondition(lambda self: self.reference.offline() and self.reference.clients)
    @rule(which=WHICH, window=WINDOWS, ack_wait=ACK_WAITS, meanwhile=FEW)
    def resumes(self, which: int, window: int, ack_wait: int, meanwhile: int) -> None:
        """A durable, or a group without members; more may be published in the same batch."""
        lines = self.reference.offline()
        request = replace(lines[which % len(lines)].request, window=window, ack_wait=ack_wait)
        if request.queue:
            request = replace(request, client_id=self._client(which).client_id)
        assert self._subscribe(request, meanwhile) == b""

    def _subscribe(self, request: Request, meanwhile: int = 0) -> bytes:
        """The error, which is that of the reference."""
        driver = self.servers.driver
        inbox = self._fresh(b"in")
        reply = self.servers.driver.reply()
        driver.frame(
            SUBJECTS.subscribe, messages.encode(_subscription_request(request, inbox)), reply
        )
        for _ in range(meanwhile):
            self._offer(
                request.channel,
                self._fresh(b"message"),
                self.reference.clients[request.client_id].conn_id,
            )
        out = driver.run()
        (answer,) = [i for i, o in enumerate(out) if o.subject == reply]
        response = messages.parse(messages.SubscriptionResponse, out[answer].payload)
        assert response.error == self.reference.subscribe(
            request, inbox, response.ack_inbox, self.servers.now
        )
        assert inbox not in [o.subject for o in out[:answer]], "a message before the response"
        for ack in pub_acks(out):
            assert ack.error == b""
            self.reference.publish(request.channel, ack.guid, self.servers.now)
        assert len(pub_acks(out)) == meanwhile
        return response.error

    @precondition(lambda self: self.reference.members)
    @rule(which=WHICH, how=ENDS)
    def leaves(self, which: int, how: str) -> None:
        self._ends(self._member(which), how)

    @precondition(lambda self: self._heirs_wait())
    @rule(which=WHICH, how=ENDS)
    def leaves_its_messages_to_others(self, which: int, how: str) -> None:
        members = self._heirs_wait()
        self._ends(members[which % len(members)], how)

    def _heirs_wait(self) -> list[Member]:
        return [m for m in self.reference.members if m.line.held(m) and len(m.line.members) > 1]

    def _ends(self, member: Member, how: str) -> None:
        assert self._leave(member, how) == b""
        self.reference.leave(member, self.servers.now, unsubscribe=how == "unsubscribe")
        self.ended.append(member)

    def _leave(self, member: Member, how: str) -> bytes:
        subject = SUBJECTS.unsubscribe if how == "unsubscribe" else SUBJECTS.sub_close
        return self.servers.driver.leave(
            subject,
            member.ack_inbox,
            channel=member.line.channel,
            client_id=member.client.client_id,
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

    kind = FileServers
    servers: FileServers

    def _start(self, end: Callable[[], None], down: float, meanwhile: int) -> None:
        """Another server starts when the present one has ended.

        Messages are published in its first batch.
        """
        self._watch()
        self.reference.advance(self.servers.now)
        self.servers.clock.advance(down)
        end()
        self.read = 0
        self.reference.restart(self.servers.now)
        if self.reference.clients:
            self._publish(self._client(0), b"foo", meanwhile)
        self._acknowledged()

    @rule(down=DOWN, meanwhile=FEW)
    def server_is_killed(self, down: float, meanwhile: int) -> None:
        self.time_passes(1.0)
        self._start(self.servers.kill, down, meanwhile)

    @rule(down=DOWN, meanwhile=FEW)
    def server_is_stopped(self, down: float, meanwhile: int) -> None:
        self._start(self.servers.stop, down, meanwhile)

    @rule(down=DOWN, meanwhile=FEW)
    def power_fails(self, down: float, meanwhile: int) -> None:
        self.time_passes(1.0)
        self._start(self.servers.lose_power, down, meanwhile)

    @precondition(lambda self: self.reference.clients)
    @rule(channel=st.sampled_from([b"late", b"foo"]))
    def another_server_takes_over(self, channel: bytes) -> None:
        """What the former owner is asked for is neither answered nor, once its successor has
        written, stored.
        """
        self.time_passes(1.0)
        if not self.reference.clients:
            return
        client = next(iter(self.reference.clients.values()))
        payload = pub_msg(b"late", channel, b"late", conn_id=client.conn_id)
        subject = f"{SUBJECTS.publish}.{channel.decode()}"
        self._start(lambda: self.servers.fail_over(subject, payload), 0.0, 1)


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
