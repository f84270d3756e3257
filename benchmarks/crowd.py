"""Many clients and subscriptions over one raw NATS connection: requests by the thousand, their
answers checked.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from ftstan.base.clock import SystemClock
from ftstan.nats.link import Link
from ftstan.wire import messages
from ftstan.wire.frames import Parser, pub_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

M = TypeVar("M", bound=Message)

CLUSTER = b"test-cluster"
_WINDOW = 512
_PATIENCE_S = 30.0


class Crowd:
    """Clients ``client(i)``, whose heartbeats are answered whenever the crowd waits for anything.

    Every method that asks for something waits for the answers; an error among them raises
    ``RuntimeError``.
    """

    def __init__(self, url: str) -> None:
        self._link = Link([url], name="crowd", clock=SystemClock())
        self._link.connect(5.0)
        self._parser = Parser(self._link.max_payload)
        self._buffer = bytearray(1 << 20)
        self._answers: list[bytes] = []
        self.deliveries = 0
        """Messages that have come, all subscriptions together."""
        self._acked = 0
        self._pongs = 0
        self.beats = 0
        """Heartbeats that were answered."""
        self._write(
            b"SUB crowd.answers 1\r\nSUB crowd.inbox.* 2\r\nSUB crowd.beats.* 3\r\nSUB "
            b"crowd.acks 4\r\n",
        )

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    # ---- what it asks for
    # ----------------------------------------------------------------------------------------

    def connect(self, numbers: Iterable[int], *, window: int = _WINDOW) -> bytes:
        """Register clients, ``window`` of them at a time; returns the publish prefix."""
        requests = [
            messages.ConnectRequest(
                client_id=client(i),
                heartbeat_inbox=b"crowd.beats.%d" % i,
                protocol=1,
                conn_id=b"conn-%d" % i,
            )
            for i in numbers
        ]
        subject = b"_STAN.discover." + CLUSTER
        answers = self._ask(
            subject, requests, lambda a: messages.parse(messages.ConnectResponse, a), window
        )
        prefix: bytes = answers[-1].pub_prefix
        return prefix

    def disconnect(self, numbers: Iterable[int]) -> None:
        """Close connections, and with them their subscriptions."""
        requests = [messages.CloseRequest(client_id=client(i)) for i in numbers]
        self._ask(
            b"_STAN.close." + CLUSTER, requests, lambda a: messages.parse(messages.CloseResponse, a)
        )

    def subscribe(
        self,
        rows: Iterable[tuple[int, bytes]],
        *,
        group: bytes = b"",
        durable: bytes = b"",
        window: int = 1 << 20,
    ) -> None:
        """Subscribe: rows of an inbox number and a channel, all of client 0. ``durable``: where the
        number goes in.
        """
        requests = [
            messages.SubscriptionRequest(
                client_id=client(0),
                subject=channel,
                q_group=group,
                durable_name=durable % i if durable else b"",
                inbox=b"crowd.inbox.%d" % i,
                max_in_flight=window,
                ack_wait_in_secs=3600,
            )
            for i, channel in rows
        ]
        self._ask(
            b"_STAN.sub." + CLUSTER,
            requests,
            lambda a: messages.parse(messages.SubscriptionResponse, a),
        )

    def unsubscribe(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Unsubscribe: the same rows."""
        requests = [
            messages.UnsubscribeRequest(
                client_id=client(0), subject=channel, inbox=b"crowd.inbox.%d" % i
            )
            for i, channel in rows
        ]
        self._ask(
            b"_STAN.unsub." + CLUSTER,
            requests,
            lambda a: messages.parse(messages.SubscriptionResponse, a),
        )

    def publish(self, prefix: bytes, channels: Iterable[bytes], *, deliveries: int) -> None:
        """Publish one message to each of ``channels``.

        Wait for their acks and for so many more deliveries.
        """
        frames = [
            pub_frame(
                prefix + b"." + channel,
                b"crowd.acks",
                messages.encode(
                    messages.PubMsg(
                        client_id=client(0),
                        guid=b"g%021d" % i,
                        subject=channel,
                        data=b"x" * 128,
                        conn_id=b"conn-0",
                    )
                ),
            )
            for i, channel in enumerate(channels)
        ]
        acked = self._acked + len(frames)
        delivered = self.deliveries + deliveries
        for i in range(0, len(frames), _WINDOW):
            self._write(b"".join(frames[i : i + _WINDOW]))
            self._read()
        self._until(lambda: self._acked >= acked and self.deliveries >= delivered)

    def steady(self, prefix: bytes, number: int, seconds: float) -> float:
        """One publish of client ``number`` after the other for that long.

        Returns the longest wait for an ack.
        """
        end = time.monotonic() + seconds
        longest = 0.0
        count = 0
        while (began := time.monotonic()) < end:
            count += 1
            message = messages.PubMsg(
                client_id=client(number),
                guid=b"s%021d" % count,
                subject=b"steady",
                conn_id=b"conn-%d" % number,
            )
            due = self._acked + 1
            self._write(pub_frame(prefix + b".steady", b"crowd.acks", messages.encode(message)))
            self._until(lambda due=due: self._acked >= due)  # type: ignore[misc]
            longest = max(longest, time.monotonic() - began)
            self.idle(0.005)
        return longest

    def flood(self, frame: bytes, seconds: float) -> int:
        """Send one frame over and over for that long, as fast as the NATS server answers PINGs
        between them; returns how often.
        """
        piece = frame * _WINDOW + b"PING\r\n"
        end = time.monotonic() + seconds
        sent = 0
        while time.monotonic() < end:
            due = self._pongs + 1
            self._write(piece)
            self._until(lambda due=due: self._pongs >= due)  # type: ignore[misc]
            sent += _WINDOW
        return sent

    def idle(self, seconds: float) -> None:
        """Answer heartbeats for that long, and nothing else."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not self._read():
                time.sleep(0.005)

    # ---- how
    # ----------------------------------------------------------------------------------------------

    def _ask(
        self,
        subject: bytes,
        requests: Sequence[Message],
        parse: Callable[[bytes], M],
        window: int = _WINDOW,
    ) -> list[M]:
        frames = [
            pub_frame(subject, b"crowd.answers", messages.encode(request)) for request in requests
        ]
        self._answers.clear()
        for i in range(0, len(frames), window):
            some = frames[i : i + window]
            self._write(b"".join(some))
            due = i + len(some)
            self._until(lambda due=due: len(self._answers) >= due)  # type: ignore[misc]
        answers = [parse(payload) for payload in self._answers]
        for answer in answers:
            if answer.error:  # type: ignore[attr-defined]
                raise RuntimeError(answer.error)  # type: ignore[attr-defined]
        return answers

    def _until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not done():
            if self._read():
                deadline = time.monotonic() + _PATIENCE_S
            elif time.monotonic() > deadline:
                raise TimeoutError(f"nothing has come for {_PATIENCE_S:g} s")
            else:
                time.sleep(0.0002)

    def _read(self) -> bool:
        n = self._link.recv_into(memoryview(self._buffer))
        beats = []
        for event in self._parser.feed(memoryview(self._buffer)[:n]) if n else ():
            if event[0] == "PING":
                self._write(b"PONG\r\n")
            self._pongs += event[0] == "PONG"
            if event[0] != "MSG":
                continue
            _, _, sid, reply, payload = event
            if sid == 1:
                self._answers.append(bytes(payload))
            elif sid == 2:
                self.deliveries += 1
            elif sid == 3:
                beats.append(pub_frame(bytes(reply), b"", b""))
            else:
                self._acked += 1
                if messages.parse(messages.PubAck, bytes(payload)).error:
                    raise RuntimeError(bytes(payload))
        if beats:
            self.beats += len(beats)
            self._write(b"".join(beats))
        return n > 0

    def _write(self, data: bytes) -> None:
        self._link.send(data, _PATIENCE_S)


def client(number: int) -> bytes:
    """The id of a client of the crowd."""
    return b"client-%d" % number
