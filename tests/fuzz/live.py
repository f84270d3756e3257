"""Hostile messages for a real server with a file store, counted, with a look for leaks at the end.

``python -m tests.fuzz.live COUNT [SEED]`` (``make soak-live``) sends so many messages as
``tests.fuzz.hostile`` makes them, through a NATS server, while an honest client publishes and hears
its own. Before and after it waits until the hostile clients, whose heartbeats nobody answers, are
gone, and compares what the server holds then: memory, descriptors, threads, connections,
subscriptions of NATS, clients.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ftstan.wire import messages
from ftstan.wire.frames import OutBuf, Parser
from ftstan.wire.subjects import Subjects
from tests.compat.driver import CLUSTER
from tests.fuzz.hostile import (
    CANARY,
    REQUESTS,
    UNREADABLE,
    Attack,
    BrokenPromiseError,
    is_decodable,
)
from tests.processes import HOST, READY, Server, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

SUBJECTS = Subjects.for_cluster(CLUSTER)
#: Messages between two songs of the honest client, which keep what is under way small.
BATCH = 250
#: Messages until threads, caches and channels are there, and between two lines of the output.
WARM_UP = 20_000
STEP = 10_000
#: Descriptors that come and go with connections that the server keeps for a while.
IDLE = 3
#: Bytes by which the server may have grown.
GROWTH = 32 << 20
#: Like those of ``hostile``; clients that do not answer are gone after some seconds.
WORDS = (
    "-mc",
    "40",
    "-mm",
    "20",
    "-mb",
    "1MB",
    "-msu",
    "20",
    "-hbi",
    "1s",
    "-hbt",
    "1s",
    "-hbf",
    "1",
)
#: Answers that may still come, so many messages later.
_WAITING = 5000
HEART = b"_INBOX.fuzz.heart"


@dataclass(frozen=True, slots=True)
class Held:
    """What a server holds while nobody but the honest client is there."""

    descriptors: int
    """Without those of channels, each of which has its directory, its subscriptions and the slice
    that it fills.
    """
    threads: int
    connections: int
    nats_subscriptions: int
    clients: int
    live_subscriptions: int
    memory: int
    """Resident, bytes."""

    @classmethod
    def by(cls, server: Server) -> Held:
        """What it holds now.

        Raises ``BrokenPromiseError`` when its channels hold more descriptors than they need.
        """
        proc = Path(f"/proc/{server.pid}")
        status = dict(
            line.split(":\t", 1)
            for line in (proc / "status").read_text().splitlines()
            if ":\t" in line
        )
        serverz = server.serverz()
        files = []
        for fd in (proc / "fd").iterdir():
            # A file may be closed while we look.
            with contextlib.suppress(FileNotFoundError):
                files.append(os.readlink(fd))
        root = f"{server.store}/"
        of_channels = sum(
            name.startswith(root) and ("/" in name.removeprefix(root) or os.path.isdir(name))
            for name in files
        )
        if of_channels > 4 * serverz["channels"]:
            raise BrokenPromiseError(f"{of_channels} descriptors of {serverz['channels']} channels")
        varz = json.loads(server.get("/varz")[1])
        subsz = json.loads(server.get("/streaming/channelsz?subs=1&limit=1000")[1])
        subs = [sub for channel in subsz["channels"] for sub in channel.get("subscriptions") or []]
        return cls(
            descriptors=len(files) - of_channels,
            threads=int(status["Threads"]),
            connections=varz["connections"],
            nats_subscriptions=varz["subscriptions"],
            clients=serverz["clients"],
            live_subscriptions=sum(not sub.get("is_offline") for sub in subs),
            memory=int(status["VmRSS"].split()[0]) * 1024,
        )


class Connection:
    """A connection to NATS that hears its inbox ``_INBOX.fuzz.>`` and the canary's messages, and
    answers heartbeats.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=60)
        self._parser = Parser()
        self.out = OutBuf()
        self.out.write(
            b'CONNECT {"verbose":false,"protocol":1}\r\nSUB _INBOX.fuzz.> 1\r\nSUB canary.in 2\r\n'
        )

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Send what there is to send, and wait for more: subjects and payloads."""
        if len(self.out):
            self._socket.sendall(self.out)
            self.out.clear()
        data = self._socket.recv(1 << 18)
        if not data:
            raise BrokenPromiseError("the NATS server closed the connection")
        events = self._parser.feed(data)
        received = []
        for event in events:
            if event[0] == "PING":
                self.out.write(b"PONG\r\n")
            elif event[0] == "MSG" and event[1] == HEART:
                self.out.publish(event[3], b"", b"")
            elif event[0] == "MSG":
                received.append((event[1], event[4]))
        return received

    def close(self) -> None:
        self._socket.close()


class Assault:
    """Hostile clients and an honest one on one connection. ``sent``: hostile messages so far."""

    def __init__(self, port: int, seed: int) -> None:
        self.attack = Attack(seed)
        self.sent = 0
        self._link = Connection(port)
        self._sung = 0
        self._asked: dict[bytes, tuple[str, str | None, str, bytes]] = {}
        self._answers: dict[bytes, bytes] = {}
        self._heard: deque[int] = deque(maxlen=1)
        connect = messages.ConnectRequest(client_id=CANARY, heartbeat_inbox=HEART, protocol=1)
        self._ask(SUBJECTS.discovery, b"_INBOX.fuzz.connect", messages.encode(connect))
        subscribe = messages.SubscriptionRequest(
            client_id=CANARY,
            subject=CANARY,
            inbox=b"canary.in",
            max_in_flight=1 << 20,
            ack_wait_in_secs=30,
        )
        self._ask(SUBJECTS.subscribe, b"_INBOX.fuzz.subscribe", messages.encode(subscribe))
        answer = messages.parse(
            messages.SubscriptionResponse, self._answers[b"_INBOX.fuzz.subscribe"]
        )
        if answer.error:
            raise BrokenPromiseError(f"the canary was refused: {answer.error!r}")
        self._ack_inbox = bytes(answer.ack_inbox)

    def close(self) -> None:
        self._link.close()

    def run(self, count: int) -> None:
        """Send ``count`` hostile messages. Raises ``BrokenPromiseError``."""
        rng = self.attack.rng
        kinds: list[Callable[[], None]] = [
            self._request,
            self._request,
            self._publish,
            self._acknowledge,
        ]
        for _ in range(count):
            rng.choice(kinds)()
            self.sent += 1
            if self.sent % BATCH == 0:
                self.sing()

    def sing(self) -> None:
        """The honest client publishes, is acknowledged and hears it.

        Then what could not be decoded was answered.
        """
        self._sung += 1
        song = b"song %d" % self._sung
        publish = messages.PubMsg(client_id=CANARY, guid=song, subject=CANARY, data=song)
        reply = b"_INBOX.fuzz.song"
        self._ask(f"{SUBJECTS.publish}.{CANARY.decode()}", reply, messages.encode(publish))
        ack = messages.parse(messages.PubAck, self._answers.pop(reply))
        if (ack.guid, ack.error) != (song, b""):
            raise BrokenPromiseError(f"the canary's publish got {ack}")
        while not self._heard or self._heard[0] < self._sung:
            self._take()
        acked = messages.Ack(subject=CANARY, sequence=self._sung)
        self._link.out.publish(self._ack_inbox, b"", messages.encode(acked))
        # Publishes pass requests that wait, and requests keep their order: the answer to this one
        # comes behind theirs.
        last = b"_INBOX.fuzz.last"
        self._ask(SUBJECTS.unsubscribe, last, UNREADABLE)
        del self._answers[last]
        for inbox, (name, refusal, answer_name, data) in list(self._asked.items()):
            answer = self._answers.pop(inbox, None)
            if answer is not None or not is_decodable(name, data):
                self.attack.judge(
                    name, refusal, answer_name, data, [] if answer is None else [answer]
                )
                del self._asked[inbox]
        while len(self._asked) > _WAITING:
            del self._asked[next(iter(self._asked))]

    def rest(self, is_over: Callable[[], object]) -> None:
        """Answer heartbeats of the honest client until ``is_over``.

        Raises ``BrokenPromiseError`` after minutes.
        """
        deadline = time.monotonic() + 300
        while not is_over():
            if time.monotonic() > deadline:
                raise BrokenPromiseError("the hostile clients are still there")
            self.sing()
            time.sleep(0.1)

    def _ask(self, subject: str, reply: bytes, payload: bytes) -> None:
        self._link.out.publish(subject.encode(), reply, payload)
        while reply not in self._answers:
            self._take()

    def _take(self) -> None:
        for subject, payload in self._link.receive():
            if subject == b"canary.in":
                self._heard.append(messages.parse(messages.MsgProto, payload).sequence)
            elif subject in self._answers:
                raise BrokenPromiseError(f"{subject!r} was answered twice")
            elif subject in self._asked or not subject.rpartition(b".")[2].isdigit():
                self._answers[subject] = payload

    def _request(self) -> None:
        subject, name, refusal, answer_name = self.attack.rng.choice(REQUESTS)
        data = self.attack.payload(name)
        inbox = b"_INBOX.fuzz.%d" % self.sent
        self._asked[inbox] = (name, refusal, answer_name, data)
        self._link.out.publish(subject.encode(), inbox, data)

    def _publish(self) -> None:
        channel = self.attack.rng.choice(["foo", "canary.x", "$"])
        self._link.out.publish(
            f"{SUBJECTS.publish}.{channel}".encode(), b"nobody", self.attack.payload("PubMsg")
        )

    def _acknowledge(self) -> None:
        self._link.out.publish(self.attack.ack_inbox(), b"", self.attack.payload("Ack"))


def settled(server: Server, assault: Assault) -> Held:
    """What the server holds once nobody but the honest client is there, and two looks in a row
    agree.
    """
    seen: list[Held] = []

    def is_over() -> bool:
        seen.append(Held.by(server))
        now, last = (
            replace(held, memory=0) for held in (seen[-1], seen[-2 if len(seen) > 1 else -1])
        )
        return len(seen) > 1 and now == last and (now.clients, now.live_subscriptions) == (1, 1)

    assault.rest(is_over)
    return seen[-1]


def leaks(before: Held, after: Held) -> list[str]:
    """What is more than it was, one line each.

    Memory may have grown by ``GROWTH``, descriptors by ``IDLE``.
    """
    found = [
        f"{name}: {value} before, {now} after"
        for (name, value), now in zip(asdict(before).items(), asdict(after).values(), strict=True)
        if name != "memory" and now > value + (IDLE if name == "descriptors" else 0)
    ]
    if after.memory - before.memory > GROWTH:
        found.append(f"memory: {before.memory >> 20} MiB before, {after.memory >> 20} MiB after")
    return found


def attack_server(directory: Path, count: int, seed: int) -> tuple[Held, Held, Counter[str]]:
    """Send ``count`` messages after ``WARM_UP`` others: what the server held in between and
    afterwards, and what happened.

    Raises ``BrokenPromiseError`` when a promise is broken or something leaked.
    """
    stage = Stage(directory)
    try:
        server = stage.server(
            "live", "-store", "FILE", "-dir", str(stage.store), *WORDS, cluster=CLUSTER
        )
        server.wait_for(READY)
        assault = Assault(server.port, seed)
        assault.run(WARM_UP)
        before = settled(server, assault)
        start = time.monotonic()
        for done in range(0, count, STEP):
            assault.run(min(STEP, count - done))
            sent = assault.sent - WARM_UP
            print(
                f"seed {seed}: {sent} messages, {sent / (time.monotonic() - start):.0f}/s",
                flush=True,
            )
        after = settled(server, assault)
        assault.close()
        found = leaks(before, after)
        if found:
            raise BrokenPromiseError("; ".join(found))
        return before, after, assault.attack.met
    finally:
        stage.end()


def main(count: int, seed: int) -> None:
    """Attack a server and say what it held before and after."""
    with tempfile.TemporaryDirectory(prefix="ftstan-live-") as directory:
        before, after, met = attack_server(Path(directory), count, seed)
    print(f"{count} messages, nothing leaked\nbefore: {before}\nafter:  {after}\n{dict(met)}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
