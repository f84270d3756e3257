"""Sessions of a load: each a NATS connection, a registration with the streaming server, and one
side of the traffic.

Used by one thread. Setting up waits for each answer; what comes after is ``step``, which never
waits for the server.
"""

from __future__ import annotations

import math
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ftstan.base.errors import NatsError, RefusedError, WireError
from ftstan.load.traffic import ANSWERS_SID, HEARTBEATS_SID, MESSAGES_SID, Publisher, Subscriber
from ftstan.nats.link import Link
from ftstan.wire import messages
from ftstan.wire.frames import OutBuf
from ftstan.wire.subjects import Subjects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from ftstan.base.clock import Clock
    from ftstan.config.options import LinkOptions
    from ftstan.load.traffic import Traffic

M = TypeVar("M", messages.ConnectResponse, messages.SubscriptionResponse, messages.CloseResponse)

_CHUNK_BYTES: Final = 64 << 10
_READS: Final = 8
_SEND_S: Final = 30.0
_AGAIN_S: Final = 0.2
_CLOSE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Where:
    """The servers: NATS addresses, login and TLS, the cluster id, and how long setting up one
    client may take.
    """

    urls: Sequence[str]
    options: LinkOptions
    cluster: str
    seconds: float
    clock: Clock


class Client:
    """One session. ``name`` is the client id, of letters, digits, ``-`` and ``_``.

    ``last`` when a message was done.
    """

    def __init__(self, where: Where, name: str, traffic: Traffic) -> None:
        self.name = name
        self.traffic = traffic
        self.pending = False
        self.last = 0.0
        self._where = where
        self._link = Link(where.urls, name=name, clock=where.clock, options=where.options)
        self._inbox = b"_INBOX." + name.encode()
        self._subjects = messages.ConnectResponse()

    def fileno(self) -> int:
        """The socket."""
        return self._link.fileno()

    def open(self) -> None:
        """Connect and register. Raises ``NatsError``, ``RefusedError``."""
        self._link.connect(self._where.seconds)
        self.traffic.open(self._link.max_payload)
        self._write(
            b"".join(
                b"SUB %b.%d %d\r\n" % (self._inbox, sid, sid)
                for sid in (ANSWERS_SID, HEARTBEATS_SID, MESSAGES_SID)
            )
        )
        self.traffic.feed(self._link.leftover)
        request = messages.ConnectRequest(
            client_id=self.name.encode(),
            heartbeat_inbox=b"%b.%d" % (self._inbox, HEARTBEATS_SID),
            protocol=messages.PROTOCOL,
            conn_id=self.name.encode(),
        )
        discovery = Subjects.for_cluster(self._where.cluster).discovery.encode()
        self._subjects = self.ask(discovery, request, messages.ConnectResponse, self._where.seconds)

    def ask(self, subject: bytes, request: Message, answer: type[M], seconds: float) -> M:
        """Ask the server, again while nobody listens.

        Raises ``RefusedError``, ``NatsError`` (also for no answer).
        """
        end = time.monotonic() + seconds
        reply = b"%b.%d" % (self._inbox, ANSWERS_SID)
        question = OutBuf()
        question.publish(subject, reply, messages.encode(request))
        while True:
            self._write(bytes(question))
            payload = self._answer(end, subject)
            if payload is not None:
                break
            if time.monotonic() + _AGAIN_S > end:
                raise NatsError(
                    f"nobody listens on {subject.decode('utf-8', 'replace')}, for {seconds:.3g} s",
                    hint="is a streaming server active, and is this its cluster id?",
                )
            time.sleep(_AGAIN_S)
        try:
            response = messages.parse(answer, payload)
        except WireError as error:
            raise RefusedError(f"the answer is not understood: {error.text}") from error
        if response.error:
            raise RefusedError(response.error.decode("utf-8", "replace"))
        return response

    def step(self) -> int:
        """Take what has come and send what there is to send.

        Returns how many messages are done by that.

        ``pending`` says whether more has come already. Raises ``NatsError``, ``WireError``.
        """
        before = self.traffic.done
        self.pending = False
        for _ in range(_READS):
            n = self._link.recv_into(_BUFFER)
            if not n:
                break
            self.traffic.feed(_BUFFER[:n])
            self.send()
            if n < len(_BUFFER) and not self._link.pending:
                break
        else:
            self.pending = True
        if self.traffic.complaint:
            raise self._complaint()
        done = self.traffic.done - before
        if done:
            self.last = time.perf_counter()
        return done

    def send(self) -> None:
        """Send what was written."""
        out = self.traffic.out
        if len(out):
            with memoryview(out) as view:
                self._link.send(view, _SEND_S)
            out.clear()

    def close(self) -> None:
        """Tell the server that this session ends, if it listens, and disconnect."""
        try:
            if self._link.connected and self._subjects.close_requests:
                request = messages.CloseRequest(client_id=self.name.encode())
                self.ask(self._subjects.close_requests, request, messages.CloseResponse, _CLOSE_S)
        except (NatsError, RefusedError, WireError):
            # Whoever is gone needs to be told nothing; the server forgets clients that do not
            # answer.
            pass
        finally:
            self._link.close()

    def _answer(self, end: float, subject: bytes) -> bytes | None:
        """The payload of the next answer, ``None`` if nobody listens."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        answers = self.traffic.answers
        while not answers:
            left = end - time.monotonic()
            if left <= 0:
                raise NatsError(
                    f"no answer on {subject.decode('utf-8', 'replace')}",
                    hint="is the streaming server busy? --connect-timeout is how long it may take",
                )
            n = self._link.recv_into(_BUFFER)
            if not n:
                poll.poll(math.ceil(left * 1000))
                continue
            self.traffic.feed(_BUFFER[:n])
            self.send()
            if self.traffic.complaint:
                raise self._complaint()
        return answers.pop(0)

    def _write(self, data: bytes) -> None:
        self._link.send(data, _SEND_S)

    def _complaint(self) -> NatsError:
        return NatsError(
            f"nats: {self.traffic.complaint.decode('utf-8', 'replace')}",
            hint="does this user's permission cover the streaming subjects and _INBOX.>? see "
            "docs/security.md",
        )


_BUFFER = memoryview(bytearray(1 << 20))


class PublisherClient(Client):
    """A session that publishes."""

    traffic: Publisher

    def __init__(self, where: Where, name: str) -> None:
        super().__init__(where, name, Publisher())

    def begin(
        self, channel: str, *, count: int, size: int, window: int, guid_prefix: bytes, mark: bytes
    ) -> None:
        """Say what to publish (``Publisher.begin``).

        Raises ``WireError`` if NATS does not carry so large a message.
        """
        name = channel.encode()
        self.traffic.begin(
            self._subjects.pub_prefix + b"." + name,
            b"%b.%d" % (self._inbox, MESSAGES_SID),
            client_id=self.name.encode(),
            conn_id=self.name.encode(),
            channel=name,
            guid_prefix=guid_prefix,
            mark=mark,
            size=size,
            count=count,
            window=window,
        )

    def send(self) -> None:
        """Publish what the window allows, in chunks, so that none is stamped long before it is
        sent.
        """
        super().send()
        while self.traffic.fill(_CHUNK_BYTES):
            super().send()

    def close(self) -> None:
        """Publish nothing more, and end the session."""
        self.traffic.stop()
        super().close()


class SubscriberClient(Client):
    """A session that subscribes."""

    traffic: Subscriber

    def __init__(self, where: Where, name: str) -> None:
        super().__init__(where, name, Subscriber())

    def begin(
        self, channel: str, *, count: int, window: int, queue: str, ack_wait: int, mark: bytes
    ) -> None:
        """Subscribe: to what comes from now on, or without a ``mark`` from the first message that
        is stored.

        Raises ``NatsError``, ``RefusedError``.
        """
        start = messages.StartPosition.NEW_ONLY if mark else messages.StartPosition.FIRST
        request = messages.SubscriptionRequest(
            client_id=self.name.encode(),
            subject=channel.encode(),
            q_group=queue.encode(),
            inbox=b"%b.%d" % (self._inbox, MESSAGES_SID),
            max_in_flight=window,
            ack_wait_in_secs=ack_wait,
            start_position=start,
        )
        answer = self.ask(
            self._subjects.sub_requests, request, messages.SubscriptionResponse, self._where.seconds
        )
        self.traffic.begin(answer.ack_inbox, channel.encode(), mark=mark, count=count)
        # What came right behind the answer.
        self.traffic.feed(b"")
        self.send()
