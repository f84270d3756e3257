"""Connections: connect, ping, close, heartbeats and the probe of a client whose id is asked for
again.

Follows ``docs/compat/protocol.md`` (connect, heartbeats and pings, closing). No socket and no
clock: what is sent goes to ``broker.replies``, what waits goes to ``broker.timers``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ftstan.base.errors import WireError
from ftstan.base.log import stream as log
from ftstan.broker import constants as c
from ftstan.broker.bounds import excess_of_connect
from ftstan.broker.client import Client
from ftstan.broker.pacing import Pacing
from ftstan.stores.interface import ClientInfo
from ftstan.wire import messages
from ftstan.wire.subjects import valid_client_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ftstan.broker.base import BrokerBase


class Connections:
    """Registered clients and their heartbeats."""

    def __init__(self, broker: BrokerBase) -> None:
        self._broker = broker
        self._tokens: dict[int, Client] = {}
        self._probes: dict[bytes, tuple[int, messages.ConnectRequest, bytes]] = {}
        self._probe_tokens: dict[int, bytes] = {}
        self._told: dict[int, ClientInfo] = {}
        """By tokens: sessions that another partition knows under the id of somebody else here."""
        self._compared: set[bytes] = set()
        """Their ids."""
        self._questions: dict[int, Client] = {}
        """By tokens: clients that are asked whether they live before anything is done for them."""
        self._next_token = 1
        self._pacing = Pacing(broker.options.hb_interval)

    # ---- connect
    # ----------------------------------------------------------------------------------------------

    def connect(self, reply: bytes, payload: bytes) -> None:
        """Handle a ConnectRequest."""
        broker = self._broker
        try:
            request = messages.parse(messages.ConnectRequest, payload)
        except WireError as error:
            broker.on_malformed("connect", b"", error.text)
            broker.answer(reply, messages.connect_error(c.INVALID_CONNECT))
            return
        if not request.heartbeat_inbox:
            broker.on_malformed("connect", request.client_id, c.NO_HEARTBEAT_INBOX)
            broker.answer(reply, messages.connect_error(c.INVALID_CONNECT))
            return
        if excess := excess_of_connect(request):
            broker.on_malformed("connect", request.client_id, excess)
            broker.answer(reply, messages.connect_error(excess))
            return
        if not valid_client_id(request.client_id):
            broker.on_malformed("connect", request.client_id, c.INVALID_CLIENT_ID)
            broker.answer(reply, messages.connect_error(c.INVALID_CLIENT_ID))
            return
        if broker.draining:
            # Of partitions the first answer counts, and the others do not leave.
            if broker.partition is None:
                broker.answer(reply, messages.connect_error(c.LAME_DUCK))
            return
        if broker.closing.holds(
            request.client_id,
            lambda: self.connect(reply, payload),
            lambda: self._refuse_taken(reply),
        ):
            # The last one of that id has not ended: whatever it leaves behind must be as it was
            # left.
            return
        self._admit(request, reply)

    def _admit(self, request: messages.ConnectRequest, reply: bytes) -> None:
        """Register a client whose id nobody has, or ask whoever has it."""
        broker = self._broker
        known = broker.clients.get(request.client_id)
        if known is not None and _is_of(request, known.info.conn_id, known.info.hb_inbox):
            # Sent again because nobody answered: to be probed would end what this very client has
            # made since, for it answers no heartbeat before it has an answer.
            known.heard = True
            self._accept(request, reply)
        elif request.client_id in self._probes:
            # One probe at a time for an id: whoever asks meanwhile is refused at once, even if the
            # client in question has closed by itself, else the end of the probe would throw out
            # somebody who is alive.
            token, first, waits = self._probes[request.client_id]
            if not waits or _is_of(request, first.conn_id, first.heartbeat_inbox):
                # The probe is its own, and it hears only the newest answer; or nobody waits for it.
                self._probes[request.client_id] = (token, request, reply)
            else:
                self._refuse_taken(reply)
        elif known is None:
            self._register(request, reply)
        else:
            self._probe(known, request, reply)

    def _refuse_taken(self, reply: bytes) -> None:
        """The id is another client's."""
        self._broker.answer(reply, messages.connect_error(c.DUPLICATE_CLIENT))

    def _register(
        self, request: messages.ConnectRequest, reply: bytes, *, replaced: bool = False
    ) -> None:
        broker = self._broker
        info = ClientInfo(
            request.client_id,
            request.heartbeat_inbox,
            request.conn_id,
            request.protocol,
            request.ping_interval,
            request.ping_max_out,
        )
        broker.store.add_client(info)
        client = self.adopt(info)
        client.heard = True
        self._accept(request, reply, partial(self._unregister, client))
        broker.pending_registrations.registered(info.client_id, info.conn_id)
        log.debug(
            f"[Client:{client.shown()}] {'Replaced old client' if replaced else 'Connected'} "
            f"(Inbox={info.hb_inbox.decode('utf-8', 'backslashreplace')})",
            client=info.client_id,
        )

    def _accept(
        self,
        request: messages.ConnectRequest,
        reply: bytes,
        undo: Callable[[], None] | None = None,
    ) -> None:
        """Answer with the subjects, once the registration is durable."""
        self._broker.answer(
            reply,
            messages.connect_response(self._broker.subjects, request),
            clients=True,
            client=request.client_id,
            refusal=messages.connect_error,
            undo=undo,
        )

    def _unregister(self, client: Client) -> None:
        """The registration could not be stored: as if the client had never come."""
        if not client.gone:
            self.remove(client)

    def learn(self, infos: Iterable[ClientInfo]) -> None:
        """Register clients that another partition knows, and this one does not, or as somebody else
        who does not answer any more.
        """
        broker = self._broker
        for number, info in enumerate(infos):
            is_asked = info.client_id in self._probes
            if is_asked or not info.hb_inbox or not valid_client_id(info.client_id):
                continue
            known = broker.clients.get(info.client_id)
            if known is not None:
                if known.info.conn_id != info.conn_id or known.info.hb_inbox != info.hb_inbox:
                    self._compare(info)
                continue
            if broker.closing.is_of(info):
                # They had not heard of it yet.
                continue
            if broker.closing.holds(info.client_id, partial(self.learn, [info])):
                continue
            broker.store.add_client(info)
            client = self.adopt(info, number)
            broker.pending_registrations.registered(info.client_id, info.conn_id)
            log.debug(f"[Client:{client.shown()}] Known to another partition")

    def _compare(self, info: ClientInfo) -> None:
        """Ask a session that another partition knows under the id of somebody here: it may have
        come back while this partition was away, or they may know one that has gone since.
        """
        token = self._ask(info.hb_inbox)
        if token:
            self._told[token] = info
            self._compared.add(info.client_id)

            def late() -> None:
                if self._told.pop(token, None) is not None:
                    self._compared.discard(info.client_id)
                    self._release(info.client_id)

            self._unless_answered(token, self._broker.now + c.PROBE_TIMEOUT, late)

    def _lives(self, info: ClientInfo) -> None:
        """That session has answered: it takes the place of one that does not."""
        self._compared.discard(info.client_id)
        known = self._broker.clients.get(info.client_id)
        if known is None:
            self.learn([info])
        elif info.client_id not in self._probes and known.info.hb_inbox != info.hb_inbox:
            self._probe(known, _request_of(info), b"")
        else:
            self._release(info.client_id)

    def is_certain(self, client: Client) -> bool:
        """Whether this client is known to be the one that has its id. If not it is asked, and
        ``_release`` follows.

        A partition may know a session that has gone, and others the one that asks for something.
        """
        client_id = client.client_id
        if client_id in self._probes or client_id in self._compared:
            return False
        if client.heard:
            return True
        if not client.asked and (token := self._ask(client.info.hb_inbox)):
            client.asked = True
            self._questions[token] = client

            def late() -> None:
                self._questions.pop(token, None)
                client.asked = False

            self._unless_answered(token, self._broker.now + c.PROBE_TIMEOUT, late)
        return False

    def _release(self, client_id: bytes) -> None:
        """Take what has waited for it to be certain who has this id, if that is who had it."""
        client = self._broker.clients.get(client_id)
        if client is not None and client_id not in self._probes:
            self._broker.pending_registrations.registered(client_id, client.info.conn_id)

    def adopt(self, info: ClientInfo, number: int = 0) -> Client:
        """Index a client that is in the store and start its heartbeats.

        ``number``: of those that a start finds, so that thousands of them are not asked in one
        moment.
        """
        broker = self._broker
        client = Client(info)
        broker.clients[info.client_id] = client
        if info.conn_id:
            broker.conns[info.conn_id] = client
        spread = number * c.RECOVERED_BEAT_STEP % max(broker.options.hb_interval // 4, 1)
        self._schedule(
            client,
            (broker.now + broker.options.hb_interval + spread) if number else self._next_beat(),
        )
        return client

    def _probe(self, old: Client, request: messages.ConnectRequest, reply: bytes) -> None:
        broker = self._broker
        token = self._ask(old.info.hb_inbox)
        if token == 0:
            self._replace(old, request, reply)
            return
        client_id = request.client_id
        self._probes[client_id] = (token, request, reply)
        self._probe_tokens[token] = client_id
        self._unless_answered(
            token, broker.now + c.PROBE_TIMEOUT, lambda: self._probe_result(token, alive=False)
        )

    def _probe_result(self, token: int, *, alive: bool) -> None:
        client_id = self._probe_tokens.pop(token, None)
        if client_id is None:
            return
        _, request, reply = self._probes.pop(client_id)
        if alive:
            self._refuse_taken(reply)
            log.debug(
                f"[Client:{client_id.decode()}] Connect failed; already connected", client=client_id
            )
            self._release(client_id)
            return
        old = self._broker.clients.get(client_id)
        if old is not None:
            self._replace(old, request, reply)
        elif not self._broker.closing.holds(
            client_id,
            # Who was held back together with it may have been registered first.
            lambda: self._admit(request, reply),
            lambda: self._refuse_taken(reply),
        ):
            self._register(request, reply)

    def _replace(self, old: Client, request: messages.ConnectRequest, reply: bytes) -> None:
        self.remove(old, lambda _: self._register(request, reply, replaced=True))

    # ---- heartbeats
    # ----------------------------------------------------------------------------------------------

    def _ask(self, inbox: bytes) -> int:
        """Send an empty request to a client's heartbeat inbox.

        Returns its token, 0 if the inbox is no subject.
        """
        broker = self._broker
        if not broker.subjects.is_inbox(inbox):
            return 0
        token = self._next_token
        self._next_token += 1
        broker.replies.publish(inbox, self._inbox_of(token), b"")
        return token

    def _inbox_of(self, token: int) -> bytes:
        """Where the answer to a question comes."""
        return self._broker.inbox_prefix + b"%d" % token

    def _unless_answered(self, token: int, when: int, late: Callable[[], None]) -> None:
        """Call ``late`` at ``when`` if the question has not been answered by then: an answer that
        has come in time may still wait for its turn.
        """
        broker = self._broker

        def look() -> None:
            broker.request_queue.hear(self._inbox_of(token))
            late()

        broker.timers.at(when, look)

    def _next_beat(self) -> int:
        """When to send the next heartbeat to a client that has just answered."""
        return self._pacing.after_interval(self._broker.now, len(self._broker.clients))

    def _schedule(self, client: Client, when: int) -> None:
        client.generation += 1
        client.beat_at = when
        generation = client.generation

        def beat() -> None:
            if not client.gone and client.generation == generation:
                self._beat(client)

        self._broker.timers.at(when, beat)

    def _beat(self, client: Client) -> None:
        broker = self._broker
        token = self._ask(client.info.hb_inbox)
        if token == 0:
            self._failed(client)
            return
        late_at = broker.now + broker.options.hb_timeout
        client.waiting += 1
        client.late_at = late_at
        self._tokens[token] = client

        def late() -> None:
            if self._tokens.pop(token, None) is client:
                client.waiting -= 1
                # Later than that only if failures of a lost link were counted already.
                self._count(client, 1, max(late_at + broker.options.hb_interval, client.beat_at))

        self._unless_answered(token, late_at, late)

    def on_inbox(self, subject: bytes, headers: bytes) -> None:
        """An answer to a heartbeat or a probe.

        A status header 503 means that nobody listens there.
        """
        try:
            token = int(subject.rpartition(b".")[2])
        except ValueError:
            self._broker.on_malformed("heartbeat answer", b"", c.STRANGE_INBOX)
            return
        nobody = headers.startswith(b"NATS/1.0 503")
        if token in self._probe_tokens:
            self._probe_result(token, alive=not nobody)
            return
        told = self._told.pop(token, None)
        if told is not None:
            if nobody:
                self._compared.discard(told.client_id)
                self._release(told.client_id)
            else:
                self._lives(told)
            return
        asked = self._questions.pop(token, None)
        if asked is not None:
            if not nobody and not asked.gone:
                asked.heard = True
                self._release(asked.client_id)
            return
        client = self._tokens.pop(token, None)
        if client is None or client.gone:
            return
        client.waiting -= 1
        if nobody:
            self._failed(client)
            return
        client.heard = True
        if client.failed:
            client.failed = 0
            self._mark(client, failed=False)
        self._schedule(client, self._next_beat())

    def _failed(self, client: Client) -> None:
        self._count(client, 1, self._broker.now + self._broker.options.hb_interval)

    def _count(self, client: Client, failures: int, following: int) -> None:
        """So many more heartbeats in a row have failed; the next one is due at ``following``."""
        if client.gone:
            return
        if client.failed == 0:
            self._mark(client, failed=True)
        client.failed += failures
        if client.failed > self._broker.options.hb_fail_count:
            log.info(f"[Client:{client.shown()}] Timed out on heartbeats", client=client.client_id)
            self.remove(client)
            return
        self._schedule(client, following)

    def link_is_back(self) -> None:
        """Count what would have failed while the link was down: one heartbeat for each interval.

        The one that waits for its answer fails by its own timer, now or later.
        """
        broker = self._broker
        interval = broker.options.hb_interval
        for client in broker.clients.values():
            client.heard = False
            first = client.late_at + interval if client.waiting else client.beat_at
            if first < broker.now and interval > 0:
                missed = -((first - broker.now) // interval)
                self._count(client, missed, first + missed * interval)

    def _mark(self, client: Client, *, failed: bool) -> None:
        for sub in client.subs:
            self._broker.mark_failed(sub, failed)

    # ---- ping, close
    # ---------------------------------------------------------------------------------------------

    def ping(self, reply: bytes, payload: bytes) -> None:
        """Handle a client's Ping. Empty and undecodable ones get no answer."""
        if not payload:
            self._broker.on_malformed("ping", b"", c.EMPTY_PING)
            return
        try:
            request = messages.parse(messages.Ping, payload)
        except WireError as error:
            self._broker.on_malformed("ping", b"", error.text)
            return
        client = self._broker.conns.get(request.conn_id) if request.conn_id else None
        if client is None:
            # A partition that was added or started anew does not know who came before it, and
            # clients give up on the first error; those that know this one answer.
            if self._broker.partition is None:
                self._broker.answer(reply, messages.ping_response(c.CLIENT_REPLACED))
            return
        if client.failed:
            self._schedule(client, self._broker.now + c.HEARTBEAT_AFTER_PING)
        self._broker.answer(reply, messages.ping_response())

    def close(self, reply: bytes, payload: bytes) -> None:
        """Handle a CloseRequest."""
        try:
            request = messages.parse(messages.CloseRequest, payload)
        except WireError as error:
            self._broker.on_malformed("close", b"", error.text)
            self._broker.answer(reply, messages.close_response(c.INVALID_CLOSE))
            return
        client = self._broker.clients.get(request.client_id)
        if client is None:
            self._broker.answer(reply, messages.close_response(c.UNKNOWN_CLIENT))
            return
        self.remove(client, partial(self._closed, client, reply))

    def _closed(self, client: Client, reply: bytes, error: str) -> None:
        self._broker.answer(
            reply,
            messages.close_response(error),
            clients=True,
            client=client.client_id,
            refusal=messages.close_response,
        )
        log.debug(
            f"[Client:{client.shown()}] Closed "
            f"(Inbox={client.info.hb_inbox.decode('utf-8', 'backslashreplace')})",
            client=client.client_id,
        )

    def remove(self, client: Client, then: Callable[[str], None] = lambda _: None) -> None:
        """Unregister a client and close its subscriptions, durables staying behind offline.

        ``then(error)`` runs when all of that is staged, which may take many turns (``closing.py``).
        """
        broker = self._broker
        client.gone = True
        del broker.clients[client.client_id]
        if client.info.conn_id and broker.conns.get(client.info.conn_id) is client:
            del broker.conns[client.info.conn_id]
        broker.store.delete_client(client.client_id)
        broker.closing.client(client, then)


def _request_of(info: ClientInfo) -> messages.ConnectRequest:
    """What that session has asked for."""
    return messages.ConnectRequest(
        client_id=info.client_id,
        heartbeat_inbox=info.hb_inbox,
        conn_id=info.conn_id,
        protocol=info.protocol,
        ping_interval=info.ping_interval,
        ping_max_out=info.ping_max_out,
    )


def _is_of(request: messages.ConnectRequest, conn_id: bytes, inbox: bytes) -> bool:
    """Whether it is the request of that session, sent again: both are made up for each session."""
    return request.conn_id == conn_id != b"" and request.heartbeat_inbox == inbox
